"""The local launcher: starts a run's roles on this machine, watches them, and leaves none behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from rampline.cluster.process import RoleProcess, end_all, start_role
from rampline.cluster.roles import role_counts, tasks_to_start
from rampline.config import RunConfig
from rampline.errors import InputError, RunFailed
from rampline.events import EventReader
from rampline.files import read_json, write_json
from rampline.run_directory import RunDirectory

POLL_SECONDS = 0.1
# From the launch to the rendezvous a role imports TensorFlow: seconds on a laptop, a minute on a busy shared machine.
IMPORT_ALLOWANCE_SECONDS = 120
LAST_ROLES_GRACE_SECONDS = 15.0

OnEvent = Callable[[dict[str, Any]], None]
Log = Callable[[str], None]


def run_roles(run_directory: RunDirectory, *, on_event: OnEvent, log: Log) -> dict[str, Any]:
    """Run every role of a run directory to its end.

    Whatever ends this call (success, a lost role, Ctrl-C, cancellation), no role is alive afterwards.

    Args:
        run_directory: created, not complete.
        on_event: gets the chief's events as they come.
        log: gets a line for what a user acts on.

    Returns:
        the content of `result.json`.

    Raises:
        RunFailed: naming the role that was lost and its log.
        InputError: when a role found the configuration wrong.
    """
    config = run_directory.read_config()
    events = EventReader(run_directory.events_file, from_end=True)
    roles: list[RoleProcess] = []
    try:
        launched_at = time.time()
        tasks = tasks_to_start(config)
        if len(tasks) < sum(role_counts(config).values()):
            log(f"waiting for the other roles of TF_CONFIG: start each with  rampline worker {run_directory.path}")
        for task in tasks:
            roles.append(start_role(task, run_directory, config, launched_at))
        _write_roles(run_directory, roles)
        _watch(run_directory, config, roles, events, on_event, launched_at)
    finally:
        end_all(roles, log)
        for event in events.read():
            on_event(event)
    return read_json(run_directory.result_file)


def _watch(
    run_directory: RunDirectory,
    config: RunConfig,
    roles: Sequence[RoleProcess],
    events: EventReader,
    on_event: OnEvent,
    launched_at: float,
) -> None:
    chief = next(role for role in roles if role.task.is_chief)
    started = False
    while True:
        for event in events.read():
            started = started or event["event"] == "started"
            on_event(event)
        lost = [role for role in roles if role.exit_status not in (None, 0)]
        if lost and not run_directory.is_complete:
            # The others fail because of the one that a signal ended.
            raise _failure(min(lost, key=lambda role: role.exit_status or 0))
        if chief.exit_status is not None:
            break
        _check_time(config, time.time() - launched_at, started)
        time.sleep(POLL_SECONDS)
    if not run_directory.is_complete:
        raise RunFailed(f"{chief.label} ended without a result; its log is {chief.log}")
    _wait_for_workers(config, roles)


def _check_time(config: RunConfig, seconds: float, started: bool) -> None:
    cluster = config.cluster
    if not started and seconds > cluster.rendezvous_timeout_seconds + IMPORT_ALLOWANCE_SECONDS:
        raise RunFailed(f"the roles did not find each other within {seconds:.0f} s: see their logs")
    if cluster.run_timeout_seconds is not None and seconds > cluster.run_timeout_seconds:
        raise RunFailed(f"the run took longer than cluster.run_timeout_seconds={cluster.run_timeout_seconds}")


def _wait_for_workers(config: RunConfig, roles: Sequence[RoleProcess]) -> None:
    """Workers of a synchronous run leave by themselves; parameter servers and their workers serve for ever."""
    deadline = time.monotonic() + (LAST_ROLES_GRACE_SECONDS if config.is_synchronous else 0)
    while time.monotonic() < deadline and any(role.exit_status is None for role in roles):
        time.sleep(POLL_SECONDS)


def _failure(role: RoleProcess) -> Exception:
    status = role.exit_status or 0
    if status == -signal.SIGALRM:
        return RunFailed(f"{role.label} did not find the other roles in time (log: {role.log})")
    if status == InputError.exit_status:
        return InputError(role.last_line() or f"{role.label} refused its configuration; its log is {role.log}")
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    # A role that a signal ended had no chance to say why: the last line of its log is about something else.
    reason = role.last_line() if status > 0 else ""
    return RunFailed(f"{role.label} {how}{': ' + reason if reason else ''} (log: {role.log})")


def _write_roles(run_directory: RunDirectory, roles: Sequence[RoleProcess]) -> None:
    write_json(run_directory.roles_file, {"roles": [role.describe() for role in roles]})
