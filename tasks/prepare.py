"""Preparing a dataset, once."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.preparation import locate_prepared, prepare_dataset
from rampline.data.quality import read_report
from rampline.errors import DatasetError
from rampline.progress import progress_to
from rampline.record.home import Home
from rampline.servers.prefect_objects.new_data import PREPARED, STUDY_LABEL
from rampline.tasks.keys import artifact_key


def cache_key(_context: Any, parameters: dict[str, Any]) -> str | None:
    """The data settings and the folder they led to; none, and so no cached result, while that folder is not there."""
    config: DataConfig = parameters["config"]
    try:
        prepared = locate_prepared(config, Home.from_environment())
    except DatasetError:
        return None  # the task says what is wrong with it
    if prepared is None:
        return None
    settings = json.dumps([str(prepared.directory), dataclasses.asdict(config)], sort_keys=True)
    return "prepared-" + hashlib.sha256(settings.encode()).hexdigest()


@task(task_run_name="prepare {config.source}", cache_key_fn=cache_key, persist_result=True, result_serializer="json")
def prepare_data(config: DataConfig, study: str) -> str:
    """Prepare the dataset unless that was done before; returns its folder."""
    progress, home = progress_to(get_run_logger().info), Home.from_environment()
    is_new = locate_prepared(config, home) is None

    def show(done: int, total: int) -> None:
        progress.event(config.source, {"event": "preparing", "done": done, "total": total})

    dataset = prepare_dataset(config, home, on_progress=show, log=progress.line)
    if is_new:
        announce_data(dataset, study)
    return str(dataset.directory)


def announce_data(dataset: PreparedDataset, study: str) -> None:
    """Emit the event `rampline.data.prepared`, which an automation may start a study on."""
    labels = {STUDY_LABEL: study, "rampline.fingerprint": dataset.fingerprint, "rampline.source": dataset.source}
    resource = {"prefect.resource.id": f"rampline.dataset.{dataset.directory.name}", **labels}
    emit_event(PREPARED, resource=resource, payload={"splits": dataset.splits, "directory": str(dataset.directory)})


@task(task_run_name="data report of {source}")
def publish_data_report(source: str, directory: str) -> None:
    """Show the data report on the flow run's page."""
    report = read_report(Path(directory))
    create_markdown_artifact(
        report.to_markdown(), key=artifact_key("data-report", source), description=f"Data of {source}"
    )
