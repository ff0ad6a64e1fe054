"""The local launcher: one attempt of a run. It starts the roles of this machine, watches them, and leaves none."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rampline.config import RunConfig
from rampline.errors import InputError, Preempted, RunFailed
from rampline.files import read_json, write_json
from rampline.jobs.exit_status import ENDED_AT_ONCE, PEER_LOST, STOPPED, WILL_REPEAT, WRONG_INPUT
from rampline.jobs.heartbeat import HeartbeatWatch
from rampline.jobs.private_network import Network
from rampline.jobs.process import STOP_GRACE_SECONDS, RoleProcess, ask_to_stop, end_processes, start_role, stop_all
from rampline.jobs.roles import network_of, role_counts
from rampline.jobs.stop import StopRequest
from rampline.jobs.tf_config import Task
from rampline.record.attempts import Attempt, Attempts
from rampline.record.events import EventReader
from rampline.record.run_directory import RunDirectory

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class RoleLost(Exception):
    """A role ended, or froze, before the run was complete.

    Attributes:
        at: `time.monotonic()` when that was found out.
        will_repeat: whether another attempt would end the same way.
        is_own: whether the role itself failed, and not because of a peer or a signal.
    """

    def __init__(self, message: str, *, will_repeat: bool = False, is_own: bool = False) -> None:
        super().__init__(message)
        self.at, self.will_repeat, self.is_own = time.monotonic(), will_repeat, is_own


class Restarts:
    """The restarts of one launch: of the whole run, and of single parameter-server workers in place.

    Args:
        limit: `cluster.max_restarts`.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._last: tuple[str, int] | None = None

    def take(self) -> bool:
        """Use one up; whether there was one left."""
        self._used += 1
        return self._used <= self._limit

    def take_for_run(self, lost: RoleLost, step: int) -> float:
        """Use one up for the whole run; returns the pause before it, which doubles while no step is won.

        Args:
            lost: why the attempt ended.
            step: what the newest checkpoint holds.

        Raises:
            RunFailed: when none is left, or the next attempt would end the same way.
        """
        if lost.will_repeat:
            raise RunFailed(str(lost)) from lost
        if lost.is_own and self._last == (str(lost), step):
            raise RunFailed(f"{lost}: twice the same, with no checkpoint in between") from lost
        if not self.take():
            raise RunFailed(f"{lost}; restarts used up: {self._limit}" if self._limit else str(lost)) from lost
        if self._last and step > self._last[1]:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self._last = (str(lost), step)
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause


# A role that has not moved for so long is named instead of the one that failed because of it.
SUSPICIOUS_SECONDS = 3.0


@dataclass(kw_only=True)
class Gang:
    """The roles of one attempt on this machine, and what is known about each.

    Attributes:
        restarts: gives leave to start a lost parameter-server worker again in place.
        network: that they are in.
    """

    run_directory: RunDirectory
    config: RunConfig
    attempt: Attempt
    restarts: Restarts
    network: Network
    launched_at: float = field(default_factory=time.monotonic)
    roles: list[RoleProcess] = field(default_factory=list)
    watches: dict[str, HeartbeatWatch] = field(default_factory=dict)

    def start(self, task: Task) -> RoleProcess:
        """Start a role, and look for its heartbeat from now on; `roles.json` is written anew."""
        self.watches[task.name] = HeartbeatWatch(self.run_directory.heartbeat_file(task.name))
        role = start_role(task, self.run_directory, self.config, self.attempt, self.launched_at, self.network)
        self.roles = [other for other in self.roles if other.task != task] + [role]
        self._write_roles()
        return role

    def _write_roles(self) -> None:
        """Those of other machines, which write the same file, stay in it."""
        file = self.run_directory.roles_file
        known = read_json(file)["roles"] if file.is_file() else []
        described = {(role["role"], role["index"]): role for role in [*known, *(r.describe() for r in self.roles)]}
        # Whoever knows an address can run operations in the role.
        write_json(file, {"roles": [described[place] for place in sorted(described)]}, mode=0o600)

    def role(self, task: Task) -> RoleProcess:
        """The process that has this place at the moment."""
        return next(role for role in self.roles if role.task == task)

    def silent_seconds(self, role: RoleProcess) -> float:
        """Time since the role's last heartbeat."""
        return self.watches[role.task.name].silent_seconds()


def why_lost(gang: Gang, role: RoleProcess) -> RoleLost:
    """Why a role ended.

    Raises:
        InputError: when it found the configuration wrong.
    """
    status = role.exit_status or 0
    if status == WRONG_INPUT:
        raise InputError(role.last_line() or f"{role.label} refused its configuration; its log is {role.log}")
    if status == -signal.SIGALRM:
        return RoleLost(f"{role.label} did not find the other roles in time (log: {role.log})")
    still = [(gang.silent_seconds(other), other) for other in gang.roles if other.exit_status is None]
    frozen = [(seconds, other) for seconds, other in still if seconds > SUSPICIOUS_SECONDS]
    if status == PEER_LOST and frozen:
        seconds, other = max(frozen, key=lambda pair: pair[0])
        return RoleLost(f"{other.label} did not move for {seconds:.0f} s, {role.label} noticed (log: {other.log})")
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    # A role that a signal ended had no chance to say why: the last line of its log is about something else.
    reason = role.last_line() if status > 0 else ""
    message = f"{role.label} {how}{': ' + reason if reason else ''} (log: {role.log})"
    return RoleLost(message, will_repeat=status == WILL_REPEAT, is_own=status > 0 and status != PEER_LOST)


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
