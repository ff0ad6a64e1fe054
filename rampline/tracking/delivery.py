"""From a run to MLflow without waiting for it: one thread does everything that talks to MLflow while a run trains."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.tracking import MlflowClient

from rampline.errors import says_disk_full
from rampline.record.delivery_state import RUNNING, STATUSES, is_undelivered, mark_delivered, mark_undelivered
from rampline.record.run_directory import RunDirectory
from rampline.tracking.lifecycle import find_run
from rampline.tracking.run_log import EVENTS, RunLog
from rampline.tracking.store import STORE_ERRORS, TrackingError, first_line

# What a run waits at its end for MLflow to take the rest. One that was asked to leave has no minute.
CLOSE_SECONDS = {"COMPLETE": 60.0, "FAILED": 60.0, "KILLED": 5.0, "PREEMPTED": 5.0}
# Where MLflow has been away for longer than that already: time for one more attempt.
LAST_ATTEMPT_SECONDS = 20.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0
SYSTEM_METRICS_SECONDS = 10.0

OpenClient = Callable[[], MlflowClient]
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _End:
    status: str
    failure: str | None
    result: Mapping[str, Any] | None


class Delivery:
    """Delivers the events of a run, and its end, to MLflow from a daemon thread; the caller never waits for MLflow.

    The run directory is the spool: after whatever went wrong the thread opens the run again, which asks MLflow what it
    has (the server may have committed before it died) and delivers the rest of `events.jsonl` in its order. What is
    not delivered at the end stays marked with the final status (`delivery.json`) for `rampline sync`.
    """

    def __init__(self, open_client: OpenClient, run_directory: RunDirectory, parent_run_id: str, log: Log) -> None:
        self._open_client, self._directory, self._parent_run_id = open_client, run_directory, parent_run_id
        self._log = log
        self._lines: deque[str] = deque()
        self._events: deque[Mapping[str, Any]] = deque()
        self._end: _End | None = None
        self._run_log: RunLog | None = None
        self._away_since: float | None = None
        self._is_abandoned = False
        self._woken, self._delivered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow-delivery", daemon=True)

    @classmethod
    def open(
        cls, open_client: OpenClient, run_directory: RunDirectory, *, parent_run_id: str, log: Log = print
    ) -> Delivery:
        """Begin to deliver a run directory; returns at once, also while MLflow is away.

        Args:
            open_client: called in the thread, again after each failure.
            run_directory: created.
            parent_run_id: MLflow run of the execution.
            log: gets a line for what a user acts on, in the thread that calls `handle` and `close`.
        """
        delivery = cls(open_client, run_directory, parent_run_id, log)
        mark_undelivered(run_directory.path, RUNNING)
        delivery._thread.start()
        return delivery

    def handle(self, event: Mapping[str, Any]) -> None:
        """Take one event of `events.jsonl`."""
        if event["event"] in EVENTS:
            self._events.append(event)
            self._woken.set()
        self._tell()

    def close(self, status: str, failure: str | None = None, result: Mapping[str, Any] | None = None) -> bool:
        """Deliver the rest and end the MLflow run; waits for `CLOSE_SECONDS` at most.

        Args:
            status: `COMPLETE`, `FAILED`, `KILLED` or `PREEMPTED`.
            failure: why it is not complete, one line for the user.
            result: content of `result.json` of a run that is.

        Returns:
            whether MLflow has all; if not, a line says how it gets the rest.
        """
        if status not in STATUSES:
            raise ValueError(f"status={status!r} is not allowed: it must be one of {', '.join(STATUSES)}")
        # Before anything that can be interrupted: `rampline sync` knows then how the run ended.
        mark_undelivered(self._directory.path, status, failure)
        away_since = self._away_since
        self._end = _End(status=status, failure=failure, result=result)
        self._woken.set()
        seconds = CLOSE_SECONDS[status]
        if away_since is not None:
            seconds = max(seconds - (time.monotonic() - away_since), min(seconds, LAST_ATTEMPT_SECONDS))
        is_delivered = self._delivered.wait(seconds)
        self._is_abandoned = not is_delivered
        self._tell()
        if not is_delivered:
            study, name = self._directory.read_identity().study, self._directory.path.name
            self._log(f"{name}: MLflow has not got all of it: `rampline sync {study}` delivers the rest later")
        return is_delivered

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._is_abandoned:
            try:
                if self._advance():
                    return
                pause = FIRST_PAUSE_SECONDS
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on and a later attempt may work
                self._run_log = None
                self._note_outage(error)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _advance(self) -> bool:
        """Deliver what there is, then wait for more; returns whether the run was ended."""
        end = self._end  # read first: no event comes after it
        self._woken.clear()
        if self._run_log is None:
            client = self._open_client()
            self._run_log = RunLog.open(client, self._directory, parent_run_id=self._parent_run_id)
        while self._events:
            self._run_log.handle(self._events[0])
            self._events.popleft()
        self._run_log.deliver_system_metrics()
        self._note_answer()
        if end is not None:
            self._run_log.close(end.status, end.failure, end.result)
            mark_delivered(self._directory.path, end.status, end.failure)
            self._delivered.set()
            return True
        if self._end is None:
            self._woken.wait(SYSTEM_METRICS_SECONDS)
        return False

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

    def _tell(self) -> None:
        # By the caller's thread: what shows lines in the terminal and in Prefect is bound to it.
        while self._lines:
            self._log(self._lines.popleft())


def is_delivered(open_client: OpenClient, run_directory: RunDirectory) -> bool:
    """Whether MLflow has all of a run that is complete; if it does not answer, what the directory says."""
    if is_undelivered(run_directory.path):
        return False
    try:
        client = open_client()
        run_id = find_run(client, run_directory)
        return run_id is not None and client.get_run(run_id).info.status == STATUSES["COMPLETE"]
    except (TrackingError, *STORE_ERRORS):
        return run_directory.tracking_file.is_file()


def deliver_within(seconds: float, deliver: Callable[[], None]) -> str | None:
    """Call `deliver` in a thread and wait for it; returns why it is not delivered, `None` if it is."""
    failures = ["MLflow does not answer"]

    def attempt() -> None:
        try:
            deliver()
            failures.clear()
        except (TrackingError, *STORE_ERRORS) as error:
            failures[0] = first_line(error)

    thread = threading.Thread(target=attempt, name="mlflow-delivery", daemon=True)
    thread.start()
    thread.join(seconds)
    return failures[0] if failures else None


def deliver_later(open_client: OpenClient, run_directory: RunDirectory, log: Callable[[MlflowClient], None]) -> str:
    """Log what was found out about a complete run, or mark it; returns why MLflow has not got it, empty if it has.

    Args:
        open_client: opens the store.
        run_directory: of the run.
        log: writes to it, such as `log_evaluation`.
    """
    if is_undelivered(run_directory.path):
        return "what came before it is not delivered yet"
    try:
        log(open_client())
    except (TrackingError, *STORE_ERRORS) as error:
        mark_undelivered(run_directory.path, "COMPLETE")
        return first_line(error)
    return ""
