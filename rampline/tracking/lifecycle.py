"""The state of MLflow runs: taken over, ended, and closed when the process they belonged to is gone."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow.entities import Run, RunTag
from mlflow.tracking import MlflowClient

from rampline.credentials import mask
from rampline.tracking.figures import PARENT_TAG
from rampline.tracking.provenance import process_identity, process_is_gone

# How a run or an execution ended, and what MLflow has for it.
STATUSES = {"COMPLETE": "FINISHED", "FAILED": "FAILED", "KILLED": "KILLED", "PREEMPTED": "KILLED"}
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
            end(client, run.info.run_id, "KILLED", "the process that ran it is gone")
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
