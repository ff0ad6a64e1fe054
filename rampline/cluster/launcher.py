"""The local launcher: one attempt of a run. It starts the roles of this machine, watches them, and leaves none."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from rampline.cluster.attempts import Attempt, Attempts
from rampline.cluster.exit_status import ENDED_AT_ONCE, STOPPED
from rampline.cluster.gang import Gang, why_lost
from rampline.cluster.process import STOP_GRACE_SECONDS, RoleProcess, ask_to_stop, end_processes, stop_all
from rampline.cluster.restarts import Restarts, RoleLost
from rampline.cluster.roles import network_of, role_counts
from rampline.cluster.tf_config import Task
from rampline.errors import Preempted, RunFailed
from rampline.events import EventReader
from rampline.run_directory import RunDirectory
from rampline.stop import StopRequest

POLL_SECONDS = 0.1
# From the launch to the rendezvous a role imports TensorFlow: seconds on a laptop, a minute on a busy shared machine.
IMPORT_ALLOWANCE_SECONDS = 120
LAST_ROLES_GRACE_SECONDS = 15.0

OnEvent = Callable[[dict[str, Any]], None]
Log = Callable[[str], None]


def run_attempt(
    run_directory: RunDirectory,
    tasks: Sequence[Task],
    *,
    attempts: Attempts,
    attempt: Attempt,
    restarts: Restarts,
    on_event: OnEvent,
    log: Log,
) -> None:
    """Run the roles of this machine to their end; whatever ends this call, none of them is alive afterwards.

    A lost worker of a parameter-server run is started again while the others go on. What ends the call from outside
    (Ctrl-C, SIGTERM, cancellation) asks the roles to save a checkpoint first; a second one ends them at once.

    Args:
        run_directory: created, not complete.
        tasks: the roles; those on other machines are started there.
        attempts: gets a line for each role that is started again.
        attempt: which one this is.
        restarts: gives leave for such a restart.
        on_event: gets the chief's events as they come.
        log: gets a line for what a user acts on.

    Raises:
        RoleLost: naming the role and its log.
        Preempted: when a role was asked to stop; says whether a checkpoint is saved.
        InputError: when a role found the configuration wrong.
        RunFailed: when the run took too long.
    """
    config = run_directory.read_config()
    if any(task.is_chief for task in tasks):
        run_directory.stop_file.unlink(missing_ok=True)
    events, stop = EventReader(run_directory.events_file, from_end=True), StopRequest(run_directory.stop_file)
    network = network_of(config, tasks)
    gang = Gang(run_directory=run_directory, config=config, attempt=attempt, restarts=restarts, network=network)
    try:
        if len(tasks) < sum(role_counts(config).values()):
            log(f"waiting for the other roles of TF_CONFIG: start each with  rampline worker {run_directory.path}")
        for task in tasks:
            gang.start(task)
        _watch(gang, attempts, events, stop, on_event, log)
    except Exception:
        end_processes([role.process for role in gang.roles])
        raise
    except BaseException:
        stop_all(gang.roles, config, log)
        raise
    else:
        end_processes([role.process for role in gang.roles])
    finally:
        for event in events.read():
            on_event(event)


def _watch(gang: Gang, attempts: Attempts, events: EventReader, stop: StopRequest, on_event: OnEvent, log: Log) -> None:
    # The chief ends the run; on a machine that has other roles alone, the first of them stands for it.
    leader = next((role.task for role in gang.roles if role.task.is_chief), gang.roles[0].task)
    started = not leader.is_chief
    while True:
        for event in events.read():
            started = started or event["event"] == "started"
            on_event(event)
        status = gang.role(leader).exit_status
        if gang.run_directory.is_complete or status == 0:
            break
        _check_stopped(gang, leader, stop)
        _check_lost(gang, attempts, log)
        _check_time(gang, started)
        time.sleep(POLL_SECONDS)
    _wait_for_workers(gang)
    if leader.is_chief and not gang.run_directory.is_complete:
        raise RoleLost(f"{gang.role(leader).label} ended without a result; its log is {gang.role(leader).log}")


def _check_stopped(gang: Gang, leader: Task, stop: StopRequest) -> None:
    """A role that was asked to stop tells the others, and all leave: the chief last, after it has saved.

    Only `stop.json` tells that it has: 143 is also the status of a process that a shell or an engine saw SIGTERM end.
    """
    asked = [role for role in gang.roles if role.exit_status in (STOPPED, ENDED_AT_ONCE, -signal.SIGTERM)]
    if not asked:
        return
    if any(role.exit_status == STOPPED for role in asked):
        _wait_for_checkpoint(gang, leader, stop)
    elif not gang.config.is_synchronous:
        # A server that went without a word: the chief does not know yet, and can still save. Synchronous peers cannot.
        ask_to_stop([gang.role(leader)])
    what = "and saved a checkpoint" if stop.is_saved() else "before it could save a checkpoint"
    raise Preempted(f"{asked[0].label} was asked to stop {what}", gang.config.cluster.preempted_exit_status)


def _wait_for_checkpoint(gang: Gang, leader: Task, stop: StopRequest) -> None:
    """Until the chief has saved and is gone, where it runs here."""
    deadline = time.monotonic() + STOP_GRACE_SECONDS
    while time.monotonic() < deadline:
        is_gone = gang.role(leader).exit_status is not None
        if is_gone and (leader.is_chief or stop.is_saved()):
            return
        time.sleep(POLL_SECONDS)


def _check_lost(gang: Gang, attempts: Attempts, log: Log) -> None:
    """Find roles that ended or froze; a parameter server's worker is started again, any other ends the attempt."""
    timeout = gang.config.cluster.heartbeat_timeout_seconds
    for role in gang.roles:
        if role.exit_status is None and gang.silent_seconds(role) > timeout:
            role.kill()
            frozen = RoleLost(f"{role.label} did not move for {timeout} s (log: {role.log})")
            _restart_in_place(gang, role, frozen, attempts, log)
    lost = [role for role in gang.roles if role.exit_status not in (None, 0)]
    # The others fail because of the one that a signal ended.
    for role in sorted(lost, key=lambda role: role.exit_status or 0):
        _restart_in_place(gang, role, why_lost(gang, role), attempts, log)


def _restart_in_place(gang: Gang, role: RoleProcess, lost: RoleLost, attempts: Attempts, log: Log) -> None:
    """Start a lost worker of a parameter-server run again, at its address, where the coordinator looks for it.

    Raises:
        RoleLost: what was lost, where that is not possible.
    """
    is_worker = not gang.config.is_synchronous and role.task.role == "worker"
    if not is_worker or lost.will_repeat or not gang.restarts.take():
        raise lost
    log(f"{lost}: starting it again, the others go on")
    attempts.restarted(role.task.name, str(lost))
    gang.start(role.task)


def _check_time(gang: Gang, started: bool) -> None:
    cluster, seconds = gang.config.cluster, time.monotonic() - gang.launched_at
    if not started and seconds > cluster.rendezvous_timeout_seconds + IMPORT_ALLOWANCE_SECONDS:
        raise RoleLost(f"the roles did not find each other within {seconds:.0f} s: see their logs")
    if cluster.run_timeout_seconds is not None and seconds > cluster.run_timeout_seconds:
        raise RunFailed(f"the run took longer than cluster.run_timeout_seconds={cluster.run_timeout_seconds}")


def _wait_for_workers(gang: Gang) -> None:
    """Synchronous roles leave by themselves; parameter servers and their workers serve for ever."""
    waited_for = [role for role in gang.roles if role.task.is_chief or gang.config.is_synchronous]
    deadline = time.monotonic() + LAST_ROLES_GRACE_SECONDS
    while time.monotonic() < deadline and any(role.exit_status is None for role in waited_for):
        time.sleep(POLL_SECONDS)
