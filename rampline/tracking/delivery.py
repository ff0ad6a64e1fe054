"""Run directories, brought to MLflow: while a run trains, at its end, and when something more was found out about it.

That is one call, `Projection.update`: what the run directory says (`rampline.tracking.description`) is written where
MLflow lacks it (`rampline.tracking.reconciliation`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.credentials import first_line
from rampline.errors import says_disk_full
from rampline.files import read_json, write_json
from rampline.record.delivery_state import (
    RUNNING,
    STATUSES,
    is_undelivered,
    mark_delivered,
    mark_undelivered,
    read_delivery,
)
from rampline.record.provenance import process_identity
from rampline.record.run_directory import RunDirectory
from rampline.tracking.artifacts import draw_artifacts
from rampline.tracking.description import EPOCHS, RunReader
from rampline.tracking.reconciliation import DATASET, FAILURE_TAG, PARENT_TAG, PROCESS_TAG, Known, reconcile
from rampline.tracking.store import STORE_ERRORS, TrackingError, create_run, find_runs, tracking_errors

INTERVAL_SECONDS = 3.0
# What a run waits at its end for MLflow to take the rest. One that was asked to leave has no minute.
CLOSE_SECONDS = {"COMPLETE": 60.0, "FAILED": 60.0, "KILLED": 5.0, "PREEMPTED": 5.0, RUNNING: 5.0}
# Where MLflow has been away for longer than that already: time for one more attempt.
LAST_ATTEMPT_SECONDS = 20.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0

OpenClient = Callable[[], MlflowClient]
Log = Callable[[str], None]


class Projection:
    """A run directory and its run in one store.

    `mlflow.json` keeps the run's id, and which version of which file was uploaded. Which epochs and samples MLflow has,
    it is asked once: a marker of ours could be older than what it has taken. Where `delivery.json` says that it has all
    of them, they are not even read. The run is made below `parent_run_id`, the execution's, if this store has none.

    Raises:
        TrackingError: when this store has no run of the directory, and no parent is given.
    """

    def __init__(self, client: MlflowClient, directory: RunDirectory, parent_run_id: str | None = None) -> None:
        self._client, self._directory, self._parent_run_id = client, directory, parent_run_id
        run, state = find_run(client, directory), read_delivery(directory.path)
        is_whole = run is not None and run.info.status != RUNNING and state is not None and state.delivered
        self._reader = RunReader(directory, from_end=is_whole)
        if run is None:
            if parent_run_id is None:
                raise TrackingError(f"{directory.path} has no run in MLflow")
            run = _find_or_create_below(client, parent_run_id, directory, self._reader.began())
        self._known = Known.of(run, dict(read_json(directory.tracking_file).get("files", ())))

    @property
    def run_id(self) -> str:
        """Id of the run in MLflow."""
        return self._known.run_id

    def update(self, is_given_up: Callable[[], bool] = lambda: False) -> tuple[str, int]:
        """Write what MLflow lacks of what the run directory says now; returns its status, and how many epochs were new.

        A run that another machine has completed is left as it is: its status is empty then.

        Args:
            is_given_up: asked at the end: whether others see to what has come since; then nothing is marked delivered.

        Raises:
            MlflowException: when MLflow refuses, or one of the other `STORE_ERRORS`.
        """
        state, before = read_delivery(self._directory.path), dict(self._known.files)
        if state is None or not state.is_running:
            draw_artifacts(self._directory)
        record, parent = self._reader.read(), self._parent_run_id
        if self._known.is_ahead_of(record.status):
            mark_delivered(self._directory.path, record.status, record.tags[FAILURE_TAG])
            return "", 0
        above = self._known.tags.get(PARENT_TAG)
        if parent:  # the run of its execution may have been deleted, and made anew
            record = replace(record, tags={**record.tags, PARENT_TAG: parent})
        # As in a record: FINISHED comes last, any other end first.
        if record.status == "COMPLETE":
            self._deliver_samples()
        new = reconcile(self._client, record, self._known)
        if record.status != "COMPLETE":
            self._deliver_samples()
        is_new_below = above != parent or DATASET in self._known.files.keys() - before.keys()
        if parent and is_new_below and record.dataset:
            self._client.log_inputs(parent, [record.dataset])
        if self._known.files != before:
            kept = {"run_id": self.run_id, "files": sorted(self._known.files.items())}
            write_json(self._directory.tracking_file, kept)
        if record.status != RUNNING and (state is None or not state.delivered) and not is_given_up():
            mark_delivered(self._directory.path, record.status, record.tags[FAILURE_TAG])
        return record.status, sum(moment.series == EPOCHS for moment in new)

    def _deliver_samples(self) -> None:
        for samples in self._reader.read_samples():
            reconcile(self._client, samples, self._known)


def find_run(client: MlflowClient, directory: RunDirectory) -> Run | None:
    """The run that the directory was logged to; `None` if this store has none, or it was deleted there."""
    run_id = logged_run_id(directory)
    return find_active(client, run_id) if run_id else None


def logged_run_id(directory: RunDirectory) -> str | None:
    """Id of the run that the directory was logged to last, in whichever store; `None` before that."""
    return read_json(directory.tracking_file)["run_id"] if directory.tracking_file.is_file() else None


def find_active(client: MlflowClient, run_id: str) -> Run | None:
    """The run of that id; `None` if this store has none, or it was deleted there."""
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _find_or_create_below(client: MlflowClient, parent_run_id: str, directory: RunDirectory, began: float) -> Run:
    """The run of that name below an execution: the directory may have been logged to another store since."""
    name = directory.read_identity().name
    experiment = client.get_run(parent_run_id).info.experiment_id
    found = find_runs(client, experiment, f"tags.`{PARENT_TAG}` = '{parent_run_id}'", "DESC")
    # Names are compared here: one may hold a quote.
    run = next((run for run in found if run.data.tags.get("rampline.run") == name), None)
    if run is None:
        tags = {PARENT_TAG: parent_run_id, "rampline.run": name, PROCESS_TAG: process_identity()}
        run = create_run(client, experiment, name=name, tags=tags, began=began)
    write_json(directory.tracking_file, {"run_id": run.info.run_id})
    return run


class Delivery:
    """Keeps MLflow up to date with a run from a daemon thread; the caller never waits for MLflow.

    The run directory is the spool: after whatever went wrong the thread begins anew, which asks MLflow what it has (the
    server may have committed before it died) and writes the rest. What is not delivered at the end stays marked with
    the final status (`delivery.json`) for `rampline sync`.

    Args:
        open_client: called in the thread, again after each failure.
        directory: created.
        parent_run_id: see `Projection`.
        log: gets a line for what a user acts on, in the thread that calls `tell` and `close`.
    """

    def __init__(
        self, open_client: OpenClient, directory: RunDirectory, *, parent_run_id: str, log: Log = print
    ) -> None:
        self._open_client, self._directory, self._parent_run_id = open_client, directory, parent_run_id
        self._log = log
        self._lines: deque[str] = deque()
        self._away_since: float | None = None
        self._is_closed = self._is_abandoned = False
        self._woken, self._delivered = threading.Event(), threading.Event()
        mark_undelivered(directory.path, RUNNING)
        threading.Thread(target=self._run, name="mlflow-delivery", daemon=True).start()

    def tell(self) -> None:
        """Log what there is to say, by the caller's thread: what shows lines in terminal and Prefect is bound to it."""
        while self._lines:
            self._log(self._lines.popleft())

    def close(self, status: str, failure: str | None = None) -> bool:
        """Deliver the rest and end the MLflow run; waits for `CLOSE_SECONDS` at most.

        Args:
            status: `COMPLETE`, `FAILED`, `KILLED` or `PREEMPTED`; `RUNNING` for a run that goes on later.
            failure: why it is not complete, one line for the user.

        Returns:
            whether MLflow has all; if not, a line says how it gets the rest.
        """
        seconds = CLOSE_SECONDS[status]
        # Before anything that can be interrupted: `rampline sync` knows then how the run ended.
        mark_undelivered(self._directory.path, status, failure)
        away_since = self._away_since
        self._is_closed = True
        self._woken.set()
        if away_since is not None:
            seconds = max(seconds - (time.monotonic() - away_since), min(seconds, LAST_ATTEMPT_SECONDS))
        is_delivered = self._delivered.wait(seconds)
        self._is_abandoned = not is_delivered
        self.tell()
        if not is_delivered:
            study, name = self._directory.read_identity().study, self._directory.path.name
            self._log(f"{name}: MLflow has not got all of it: `rampline sync {study}` delivers the rest later")
        return is_delivered

    def abandon(self) -> None:
        """Deliver nothing more."""
        self._is_abandoned = True
        self._woken.set()

    def _run(self) -> None:
        projection, pause = None, FIRST_PAUSE_SECONDS
        while not self._is_abandoned:
            is_closed = self._is_closed  # read first: the run directory does not change after it
            self._woken.clear()
            try:
                projection = projection or Projection(self._open_client(), self._directory, self._parent_run_id)
                projection.update(lambda: self._is_abandoned)
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on and a later attempt may work
                projection = None
                self._note_outage(error)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            pause = FIRST_PAUSE_SECONDS
            self._note_answer()
            if is_closed:
                self._delivered.set()
                return
            if not self._is_closed:
                self._woken.wait(INTERVAL_SECONDS)

    def _note_outage(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            what, then = "MLflow does not answer", first_line(error)
            if says_disk_full(error):
                what, then = "the disk is full", "MLflow gets what is missing when there is room"
            self._lines.append(f"{what}, training goes on: {then}")

    def _note_answer(self) -> None:
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            self._lines.append(f"MLflow answers again after {seconds:.0f} s: what was missing is delivered")


def is_delivered(open_client: OpenClient, directory: RunDirectory) -> bool:
    """Whether MLflow has all of a run that is complete; if it does not answer, what the directory says."""
    if is_undelivered(directory.path):
        return False
    try:
        run = find_run(open_client(), directory)
        return run is not None and run.info.status == STATUSES["COMPLETE"]
    except (TrackingError, *STORE_ERRORS):
        return directory.tracking_file.is_file()


def deliver_run(client: MlflowClient, directory: RunDirectory) -> None:
    """Bring the run that MLflow has of a directory up to date.

    Raises:
        TrackingError: when MLflow has no run of this directory, or refuses.
    """
    with tracking_errors(f"{directory.path} cannot be logged to MLflow"):
        Projection(client, directory).update()


def deliver_news(open_client: OpenClient, directory: RunDirectory) -> str:
    """Deliver what was found out about a complete run, or mark it; returns why MLflow lacks it, else nothing."""
    if is_undelivered(directory.path):
        return "what came before it is not delivered yet"
    try:
        deliver_run(open_client(), directory)
    except TrackingError as error:
        mark_undelivered(directory.path, "COMPLETE")
        return str(error)
    return ""
