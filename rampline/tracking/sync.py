"""Delivering later: what runs and executions left behind that MLflow has not got, into whichever store is set now."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from mlflow.tracking import MlflowClient

from rampline.files import read_json
from rampline.record.delivery_state import GONE, RUNNING, DeliveryState, mark_delivered, read_delivery
from rampline.record.provenance import process_identity, process_is_gone
from rampline.record.run_directory import RunDirectory
from rampline.study.execution_file import FILE, Execution
from rampline.tracking.lifecycle import PROCESS_TAG, find_run
from rampline.tracking.run_artifacts import log_evaluation, log_explanation
from rampline.tracking.run_log import RunLog
from rampline.tracking.store import STORE_ERRORS, TrackingError, experiment_id, first_line
from rampline.tracking.study_log import StudyLog, open_experiment, study_tags

Log = Callable[[str], None]


def sync_execution(client: MlflowClient, execution: Execution, *, log: Log, runs: Collection[str] = ()) -> int:
    """Deliver what the store of `client` has not got of an execution; one that a process works on is left to it.

    Args:
        client: any store, also one that has never heard of the study.
        execution: begun; has its run in that store afterwards.
        log: gets a line per run that something was delivered of.
        runs: names of the runs to look at; all if empty.

    Returns:
        of how many runs something was delivered.

    Raises:
        TrackingError: when MLflow refuses; what was delivered until then counts.
    """
    folder, study, state = execution.folder, execution.study, read_delivery(execution.folder)
    if state is not None and state.is_running and not state.is_ours:
        log(f"{study.name}/{folder.name}: is running, its own process delivers it")
        return 0
    try:
        _find_parent(client, execution)
        directories = [execution.directory(run.name) for run in study.runs if not runs or run.name in runs]
        made = [directory for directory in directories if directory.config_file.is_file()]
        delivered = [_sync_run(client, directory, execution.parent_run_id, log) for directory in made]
        if state is None or not state.is_running:
            _end_parent(client, execution, state)
    except STORE_ERRORS as error:
        raise TrackingError(f"{folder} cannot be delivered to MLflow: {first_line(error)}") from error
    return sum(delivered)


def executions(runs: Path) -> list[Path]:
    """Folders of all executions below `runs`, those begun first in front."""
    files = sorted(runs.glob(f"*/*/{FILE}"), key=lambda file: file.stat().st_mtime)
    return [file.parent for file in files]


def _sync_run(client: MlflowClient, directory: RunDirectory, parent_run_id: str, log: Log) -> bool:
    state = read_delivery(directory.path)
    if (state is None or state.delivered) and not _is_missing(client, directory):
        return False
    name = f"{directory.read_identity().study}/{directory.path.parent.name}/{directory.path.name}"
    if state is not None and state.is_running:
        log(f"{name}: is running, its own process delivers it")
        return False
    status, failure = _how_it_ended(directory, state)
    result = read_json(directory.result_file) if directory.is_complete else None
    evaluation = read_json(directory.evaluation_file) if directory.evaluation_file.is_file() else None
    run_log = RunLog.open(client, directory, parent_run_id=parent_run_id)
    run_log.close(status, failure, result)
    if evaluation:
        log_evaluation(client, directory, evaluation)
    log_explanation(client, directory)
    mark_delivered(directory.path, status, failure)
    parts = [f"{run_log.new_epochs} epochs", "result" if result else "", "evaluation" if evaluation else "", status]
    log(f"{name}: delivered {', '.join(filter(None, parts))}")
    return True


def _is_missing(client: MlflowClient, directory: RunDirectory) -> bool:
    """Whether the store has no such run, or one that was left RUNNING."""
    run_id = find_run(client, directory)
    return run_id is None or _is_left(client, run_id)


def _is_left(client: MlflowClient, run_id: str) -> bool:
    run = client.get_run(run_id)
    return run.info.status == "RUNNING" and process_is_gone(run.data.tags.get(PROCESS_TAG, ""))


def _how_it_ended(directory: RunDirectory, state: DeliveryState | None) -> tuple[str, str | None]:
    if directory.is_complete:
        return "COMPLETE", None
    if state is not None and state.status != RUNNING:
        return state.status, state.failure
    last = directory.read_events("started", "stopped", "finished", "failed")[-1:]
    failed = [event["message"] for event in last if event["event"] == "failed"]
    return ("FAILED", failed[0]) if failed else ("KILLED", GONE)


def _find_parent(client: MlflowClient, execution: Execution) -> None:
    """Lead the execution to its run in this store; in another one than before it is looked for by name, then made."""
    study, home = execution.study, execution.home
    experiment = experiment_id(client, study.name, home)
    found = client.search_runs([experiment], "tags.`rampline.kind` = 'study'", max_results=1000)
    ids = [run.info.run_id for run in found if run.data.tags.get("rampline.execution") == execution.name]
    if execution.parent_run_id in ids:
        return
    file = execution.folder / FILE
    times = file.stat()
    if not ids:
        experiment, tags = open_experiment(client, study, home, execution=execution.name), study_tags(study)
        names, began = {"study": study.name, "execution": execution.name}, times.st_mtime
        ids = [StudyLog.open(client, experiment, **names, tags=tags, began_seconds=began).run_id]
    execution.parent_run_id = ids[0]
    execution.write()
    # The newest file is the study's latest execution; this one is no newer than it was.
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _end_parent(client: MlflowClient, execution: Execution, state: DeliveryState | None) -> None:
    run = client.get_run(execution.parent_run_id)
    is_delivered = state is None or state.delivered
    if is_delivered and run.info.status != "RUNNING":
        return
    process = run.data.tags.get(PROCESS_TAG, "")
    if is_delivered and process != process_identity() and not process_is_gone(process):
        return
    complete = all(execution.directory(run.name).is_complete for run in execution.study.runs)
    status, failure = ("COMPLETE", None) if complete else ("KILLED", GONE)
    if state is not None and state.status != RUNNING:
        status, failure = state.status, state.failure
    StudyLog(client, execution.parent_run_id).close(status, failure)
    mark_delivered(execution.folder, status, failure)
