"""Whole executions, brought to MLflow: what runs left behind that it has not got, into whichever store is set now."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import AbstractContextManager

from mlflow.tracking import MlflowClient

from rampline.credentials import first_line
from rampline.errors import RamplineError
from rampline.files import locked
from rampline.record.delivery_state import (
    GONE,
    RUNNING,
    mark_delivered,
    mark_killed,
    mark_undelivered,
    read_delivery,
)
from rampline.record.provenance import process_identity, process_is_gone
from rampline.record.run_directory import RunDirectory
from rampline.study.execution_file import Execution, began_at
from rampline.tracking.delivery import CLOSE_SECONDS, Log, OpenClient, Projection, find_active, find_run
from rampline.tracking.experiment import begin_run, open_experiment, study_tags
from rampline.tracking.reconciliation import PARENT_TAG, PROCESS_TAG, Known, Record, ending, reconcile
from rampline.tracking.store import STORE_ERRORS, experiment_id, find_runs, tracking_errors


def end_execution(open_client: OpenClient, execution: Execution, status: str, failure: str | None = None) -> str | None:
    """End an execution in MLflow, and its runs that are not ended yet, without waiting long.

    Runs end as their folders say, `KILLED` where those say nothing.

    Args:
        open_client: called in a thread.
        execution: begun, its folder held.
        status, failure: see `End`.

    Returns:
        why MLflow does not know it, `None` if it does; it stays marked then for `rampline sync`.
    """
    mark_undelivered(execution.folder, status, failure)
    mark_killed(execution.folder, process_identity(), "its execution ended before it did")
    failures = ["MLflow does not answer"]

    def deliver() -> None:
        try:
            _sync(open_client(), execution, lambda _: None)
            failures.clear()
        except (RamplineError, *STORE_ERRORS) as error:
            failures[0] = first_line(error)

    thread = threading.Thread(target=deliver, name="mlflow-delivery", daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS[status])
    return failures[0] if failures else None


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
    state = read_delivery(execution.folder)
    if state is not None and state.is_ours:  # the process that holds its folder
        return _sync(client, execution, log, runs)
    with _delivering(execution), locked(execution.folder / ".lock", seconds=0) as is_free:
        state = read_delivery(execution.folder)
        if is_free and not (state and state.is_running):
            return _sync(client, execution, log, runs)
    log(f"{execution.study.name}/{execution.name}: is running, its own process delivers it")
    return 0


def _delivering(execution: Execution) -> AbstractContextManager[None]:
    return tracking_errors(f"{execution.folder} cannot be delivered to MLflow")


def _sync(client: MlflowClient, execution: Execution, log: Log, runs: Collection[str] = ()) -> int:
    study, state = execution.study, read_delivery(execution.folder)
    with _delivering(execution):
        find_parent(client, execution)
        directories = [execution.directory(run.name) for run in study.runs if not runs or run.name in runs]
        made = [directory for directory in directories if directory.config_file.is_file()]
        delivered = [_sync_run(client, directory, execution.parent_run_id, log) for directory in made]
        if state is None or not state.is_running:
            _end_parent(client, execution)
    return sum(delivered)


def find_parent(client: MlflowClient, execution: Execution) -> None:
    """Lead the execution to its run in this store; in another one than before it is looked for, then made.

    What it is found by are its name and its begin: several homes may use one store, and one name again and again.
    """
    study, home = execution.study, execution.home
    experiment = experiment_id(client, study.name, home)
    known = find_active(client, execution.parent_run_id)
    if known and known.info.experiment_id == experiment:
        return
    found = find_runs(client, experiment, "tags.`rampline.kind` = 'study'", "DESC")
    began = began_at(execution.folder)
    # Names are compared here: one may hold a quote. MLflow keeps whole milliseconds.
    named = [run.info for run in found if run.data.tags.get("rampline.execution") == execution.name]
    ids = [info.run_id for info in named if abs(info.start_time - 1000 * began) < 1]
    if not ids:
        experiment = open_experiment(client, study, home, execution=execution.name)
        names = {"study": study.name, "execution": execution.name}
        ids = [begin_run(client, experiment, **names, tags=study_tags(study, execution.folder), began=began)]
    execution.parent_run_id = ids[0]
    execution.write()


def _sync_run(client: MlflowClient, directory: RunDirectory, parent_run_id: str, log: Log) -> bool:
    state = read_delivery(directory.path)
    if (state is None or state.delivered) and not _is_missing(client, directory, parent_run_id):
        return False
    name = f"{directory.read_identity().study}/{directory.path.parent.name}/{directory.path.name}"
    if state is not None and state.is_running:
        log(f"{name}: is running, its own process delivers it")
        return False
    status, epochs = Projection(client, directory, parent_run_id).update()
    if not status:
        log(f"{name}: another machine has completed it")
        return False
    parts = [f"{epochs} epochs", "result" if directory.is_complete else ""]
    parts += ["evaluation" if directory.evaluation_file.is_file() else "", status]
    log(f"{name}: delivered {', '.join(filter(None, parts))}")
    return True


def _is_missing(client: MlflowClient, directory: RunDirectory, parent_run_id: str) -> bool:
    """Whether the store has no such run below its execution, or one that was left RUNNING."""
    run = find_run(client, directory)
    if run is None or run.data.tags.get(PARENT_TAG) != parent_run_id:
        return True
    return run.info.status == RUNNING and process_is_gone(run.data.tags.get(PROCESS_TAG, ""), directory.path)


def _end_parent(client: MlflowClient, execution: Execution) -> None:
    """End the run of the execution, unless it has ended, or another process is at work on it."""
    state, known = read_delivery(execution.folder), Known.ask(client, execution.parent_run_id)
    if state is None or state.delivered:
        process = known.tags.get(PROCESS_TAG, "")
        if known.status != RUNNING or (
            process != process_identity() and not process_is_gone(process, execution.folder)
        ):
            return
    complete = all(execution.directory(run.name).is_complete for run in execution.study.runs)
    status, failure = ("COMPLETE", None) if complete else ("KILLED", GONE)
    if state is not None and state.status != RUNNING:
        status, failure = state.status, state.failure
    if not known.is_ahead_of(status):
        reconcile(client, Record(status=status, tags=ending(status, failure)), known)
    mark_delivered(execution.folder, status, failure)
