"""Which MLflow run a run directory is logged to (`RUN_DIR/mlflow.json`)."""

from __future__ import annotations

from pathlib import Path

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.data.dataset import PreparedDataset
from rampline.events import EventReader
from rampline.files import read_json, write_json
from rampline.run_directory import RunDirectory
from rampline.tracking.figures import PARENT_TAG
from rampline.tracking.lifecycle import PROCESS_TAG
from rampline.tracking.provenance import commit_tags, process_identity, source_tags


def find_run(client: MlflowClient, run_directory: RunDirectory) -> str | None:
    """Id of the run that the directory was logged to; `None` if this store has none, or it was deleted there."""
    if not run_directory.tracking_file.is_file():
        return None
    run_id = read_json(run_directory.tracking_file)["run_id"]
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run_id if run.info.lifecycle_stage == "active" else None


def find_or_create_run(client: MlflowClient, run_directory: RunDirectory, parent_run_id: str) -> str:
    """Id of the directory's run in this store; the one of another store is left alone."""
    run_id = find_run(client, run_directory)
    if run_id is None:
        run_id = _find_below(client, run_directory.read_identity().name, parent_run_id)
        if run_id is not None:
            write_json(run_directory.tracking_file, {"run_id": run_id})
    return run_id or create_run(client, run_directory, parent_run_id)


def _find_below(client: MlflowClient, name: str, parent_run_id: str) -> str | None:
    """The run of that name below an execution: the directory may have been logged to another store since."""
    condition = f"tags.`{PARENT_TAG}` = '{parent_run_id}'"
    experiment = client.get_run(parent_run_id).info.experiment_id
    found = client.search_runs([experiment], condition, max_results=1000)
    # Names are compared here: one may hold a quote.
    return next((run.info.run_id for run in found if run.data.tags.get("rampline.run") == name), None)


def create_run(client: MlflowClient, run_directory: RunDirectory, parent_run_id: str) -> str:
    """Id of a new run below that of the execution, with its tags; the directory keeps it."""
    config, identity = run_directory.read_config(), run_directory.read_identity()
    parent = client.get_run(parent_run_id)
    dataset = PreparedDataset.open(Path(identity.dataset))
    tags = {
        PARENT_TAG: parent_run_id,
        PROCESS_TAG: process_identity(),
        "rampline.kind": "run",
        "rampline.run": identity.name,
        "rampline.study": identity.study,
        "rampline.execution": parent.data.tags.get("rampline.execution", ""),
        "rampline.strategy": config.strategy,
        "rampline.run_dir": str(run_directory.path.absolute()),
        "rampline.attempts": "1",
        "rampline.data_fingerprint": dataset.fingerprint,
        **commit_tags(identity.git_commit),
        **source_tags(identity.study),
        **{f"rampline.published.{metric}": str(value) for metric, value in identity.published.items()},
    }
    began = int(1000 * _began_seconds(run_directory))
    experiment = parent.info.experiment_id
    run = client.create_run(experiment, start_time=began, tags=tags, run_name=identity.name)
    write_json(run_directory.tracking_file, {"run_id": run.info.run_id})
    return run.info.run_id


def _began_seconds(run_directory: RunDirectory) -> float:
    """When the run began, however much later it is delivered: MLflow orders runs by that, and shows how long they took.

    A copied directory has files that are younger than the events in them.
    """
    modified = run_directory.identity_file.stat().st_mtime
    first = next(EventReader(run_directory.events_file).read(), None)
    return min(modified, first["time"]) if first else modified
