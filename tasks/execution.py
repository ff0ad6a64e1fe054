"""An execution from its turn on the devices to its end, as every flow that makes one goes through it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rampline.stages import closing
from rampline.study import Study
from tasks.devices import in_turn
from tasks.flow_run import flow_run_address
from tasks.start import start

Prepare = Callable[[str, list[str], dict[str, str], str], Any]


@contextmanager
def open_execution(
    checked: Study, study: str, only: list[str], overrides: dict[str, str], execution: str = "", *, prepare: Prepare
) -> Iterator[str]:
    """Wait for the study's turn, prepare its data, open its execution; close it with the block. Yields its folder.

    Args:
        checked: what `study`, `only` and `overrides` lead to.
        study: name or path.
        only: runs; all if empty.
        overrides: dotted keys laid over every run.
        execution: folder of one that is continued.
        prepare: the flow that prepares the data.
    """
    with in_turn(checked):
        prepare(study, only, overrides, execution)
        path = start(study, only, overrides, execution)
        with closing(path, flow_run_address()):
            yield path
