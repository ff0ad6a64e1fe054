"""The state of MLflow runs: taken over, ended, and closed when the process they belonged to is gone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.credentials import mask
from rampline.data.dataset import PreparedDataset
from rampline.files import read_json, write_json
from rampline.record.delivery_state import GONE, STATUSES
from rampline.record.events import EventReader
from rampline.record.provenance import commit_tags, process_identity, process_is_gone, source_tags
from rampline.record.run_directory import RunDirectory
from rampline.tracking.store import PARENT_TAG

STATUS_TAG = "rampline.status"
PROCESS_TAG = "rampline.process"
FAILURE_TAG = "rampline.failure"


def take_over(client: MlflowClient, run_id: str, *, tags: Mapping[str, str] | None = None) -> None:
    """Set a run RUNNING, in the name of this process; `tags` are those that change with that."""
    tags = {PROCESS_TAG: process_identity(), STATUS_TAG: "RUNNING"} | dict(tags or {})
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
    client.update_run(run_id, status="RUNNING")
    if FAILURE_TAG in client.get_run(run_id).data.tags:
        client.delete_tag(run_id, FAILURE_TAG)


def end(
    client: MlflowClient,
    run_id: str,
    status: str,
    failure: str | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    ended_seconds: float | None = None,
) -> None:
    """Set the final status of a run.

    Args:
        client: of the store.
        run_id: the run.
        status: one of `STATUSES`.
        failure: why it did not end well.
        tags: those that change with that.
        ended_seconds: Unix time of its end; now by default.

    Raises:
        ValueError: when `status` is none of `STATUSES`.
    """
    if status not in STATUSES:
        raise ValueError(f"status={status!r} is not allowed: it must be one of {', '.join(STATUSES)}")
    tags = {STATUS_TAG: status, **(tags or {})} | ({FAILURE_TAG: mask(failure)} if failure else {})
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
    ended = None if ended_seconds is None else int(1000 * ended_seconds)
    client.set_terminated(run_id, status=STATUSES[status], end_time=ended)


def end_running_children(client: MlflowClient, parent: Run, ends: Mapping[str, tuple[str, str | None]]) -> None:
    """End the runs of an execution that were left RUNNING, so that none outlives it.

    Args:
        client: of the store.
        parent: run of the execution.
        ends: status and failure of those of which MLflow was not told in time, by name; others end `KILLED`.
    """
    ours = f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'"
    unknown = "KILLED", "its execution ended before it did"
    for run in _running(client, parent.info.experiment_id, f" and {ours}"):
        end(client, run.info.run_id, *ends.get(run.data.tags.get("rampline.run", ""), unknown))


def end_abandoned(client: MlflowClient, experiment_id: str) -> list[str]:
    """Set KILLED what processes of this machine left RUNNING when they were killed; returns the names of those runs.

    The guardian does that at the moment of a `kill -9`; where it was killed too, the next
    execution does. Runs of other machines are left alone.
    """
    ended = []
    for run in _running(client, experiment_id):
        if process_is_gone(run.data.tags.get(PROCESS_TAG, "")):
            end(client, run.info.run_id, "KILLED", GONE)
            ended.append(run.info.run_name or run.info.run_id)
    return ended


def end_runs_of(client: MlflowClient, parent_run_id: str, process: str, failure: str) -> list[str]:
    """Set KILLED what `process` left RUNNING of an execution; what another one has taken over meanwhile goes on.

    Returns:
        ids of those runs.
    """
    parent = client.get_run(parent_run_id)
    ours = f" and tags.`{PARENT_TAG}` = '{parent_run_id}'"
    runs = [*_running(client, parent.info.experiment_id, ours), parent]
    left = [run for run in runs if run.info.status == "RUNNING" and run.data.tags.get(PROCESS_TAG) == process]
    for run in left:
        end(client, run.info.run_id, "KILLED", failure)
    return [run.info.run_id for run in left]


def _running(client: MlflowClient, experiment_id: str, condition: str = "") -> list[Run]:
    return list(client.search_runs([experiment_id], f"attributes.status = 'RUNNING'{condition}", max_results=1000))


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
