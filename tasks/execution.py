"""An execution from its turn on the devices to its end, as every flow that makes one goes through it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect import get_run_logger
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from rampline.execution import closing
from rampline.progress import progress_to
from rampline.record.provenance import process_identity
from rampline.servers.guardian import start_guardian
from rampline.study import Study
from rampline.tasks.devices import in_turn
from rampline.tasks.flow_run import flow_run_address
from rampline.tasks.start import start
from rampline.training.model_contract import check_models

Prepare = Callable[[str, list[str], dict[str, str], str], Any]


@contextmanager
def open_execution(
    checked: Study, study: str, only: list[str], overrides: dict[str, str], execution: str = "", *, prepare: Prepare
) -> Iterator[str]:
    """Wait for the study's turn, check its models, prepare its data, open its execution; close it with the block.

    Yields the folder of the execution.

    Args:
        checked: what `study`, `only` and `overrides` lead to.
        study: name or path.
        only: runs; all if empty.
        overrides: dotted keys laid over every run.
        execution: folder of one that is continued.
        prepare: the flow that prepares the data.
    """
    with in_turn(checked), _one_heartbeat():
        check_models(checked, log=progress_to(get_run_logger().info).line)
        prepare(study, only, overrides, execution)
        path = start(study, only, overrides, execution)
        with closing(path, lambda folder: start_guardian(folder, process_identity(), flow_run_address())):
            yield path


@contextmanager
def _one_heartbeat() -> Iterator[None]:
    """Stages that are flows send no heartbeats of their own, unless somebody has asked for them.

    They are in the process of their parent, which sends some. Each flow ends by waiting, up to a second, for the thread
    that sends its heartbeats.
    """
    if "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" in os.environ:
        yield
        return
    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
