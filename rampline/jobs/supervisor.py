"""The supervisor: attempts of a run, one after the other, until it is complete or another one would not help.

An attempt starts the roles where the launcher has placed them, watches them, and leaves none.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rampline.config import RunConfig
from rampline.config.sections import AUTO
from rampline.errors import DownloadFailed, Preempted, RunFailed
from rampline.files import locked, read_json, write_json
from rampline.jobs.exit_status import ENDED_AT_ONCE, GPU_TAKEN, MACHINE_LOST, NO_MEMORY, PEER_LOST, STOPPED, WILL_REPEAT
from rampline.jobs.fence import fence
from rampline.jobs.heartbeat import RunningClock
from rampline.jobs.job import Job, OnEvent, how_it_ended
from rampline.jobs.launcher import Launcher, PlaceLost, Placement, Role, are_gone, end_roles, workers_now
from rampline.jobs.launchers import launcher_of
from rampline.jobs.stop import StopRequest
from rampline.jobs.tf_config import Task
from rampline.jobs.waiting import POLL_SECONDS, wait_until
from rampline.record.attempts import Attempts, read_accumulate, write_hosts
from rampline.record.checkpoints import last_checkpoint, step_of
from rampline.record.events import EventReader
from rampline.record.run_directory import RunDirectory

# A role that has not moved for so long is named instead of the one that failed because of it.
SUSPICIOUS_SECONDS = 3.0
# For a checkpoint at the next call boundary; one that is being written may take longer.
STOP_GRACE_SECONDS = 14.0
# In a heartbeat, of a chief that writes a checkpoint.
SAVING = b" save "
# From the launch to the rendezvous a role imports TensorFlow: seconds on a laptop, a minute on a busy shared machine.
IMPORT_ALLOWANCE_SECONDS = 120
LAST_ROLES_GRACE_SECONDS = 15.0
# Before a run is started again.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0

Log = Callable[[str], None]


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
    """The restarts of one launch: of the whole run, and of single parameter-server workers in place."""

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


class RoomFound(Exception):
    """An elastic run has left with a checkpoint, because there is room for more workers."""


@dataclass(kw_only=True)
class Gang:
    """The roles of one attempt that are started here.

    Attributes:
        placement: the first of its tasks ends the run: the chief, or on a machine that has other roles alone, the one
            that stands for it.
        fence: what its roles' environment has of `rampline.jobs.fence`.
        accumulate: micro-batches, where `batch.accumulate` is `auto`.
        unclear: machines of which it is not known, in the end, that nothing runs there any more.
    """

    run_directory: RunDirectory
    config: RunConfig
    placement: Placement
    attempts: Attempts
    restarts: Restarts
    launcher: Launcher
    on_event: OnEvent
    log: Log
    fence: dict[str, str] = field(default_factory=dict)
    unclear: frozenset[str] = frozenset()
    accumulate: int | None = None
    launched_at: float = field(default_factory=time.monotonic)
    clock: RunningClock = field(default_factory=RunningClock)
    roles: list[Role] = field(default_factory=list)

    def start(self, task: Task) -> None:
        """Start a role, in the place of the one before it; `roles.json` is written anew."""
        own = {
            "RAMPLINE_ATTEMPT": str(self.attempts.number),
            "RAMPLINE_LAUNCHED_AT": repr(self.launched_at),
            "RAMPLINE_WALL_SECONDS_BEFORE": repr(self.attempts.wall_seconds_before),
            **self.fence,
        }
        if self.accumulate:
            own["RAMPLINE_ACCUMULATE"] = str(self.accumulate)
        dataset = Path(self.run_directory.read_identity().dataset)
        job = Job(function="role", folder=self.run_directory.path, datasets=[dataset], environment=own)
        self.run_directory.heartbeat_file(task.name).unlink(missing_ok=True)  # of the role before it
        self.roles = [*(other for other in self.roles if other.task != task), self.placement.start(task, job)]
        self._write_roles()

    def _write_roles(self) -> None:
        """Those of other machines, which write the same file, stay in it; not workers that the run has no more."""
        file, cluster = self.run_directory.roles_file, self.placement.tasks[0].cluster
        lock = locked(file.with_name(f".{file.name}.lock")) if self.config.cluster.launcher == "hand" else nullcontext()
        with lock:
            known = read_json(file)["roles"] if file.is_file() else []
            known = [role for role in known if role["index"] < len(cluster.get(role["role"], ()))]
            described = {(role["role"], role["index"]): role for role in [*known, *(r.describe() for r in self.roles)]}
            # A process that knows an address can run operations in the role.
            write_json(file, {"roles": [described[place] for place in sorted(described)]}, mode=0o600)

    @property
    def lacks_memory(self) -> bool:
        """Whether a role, now that all have ended, found no memory for a step that smaller micro-batches may fit."""
        is_out = any(role.exit_status == NO_MEMORY for role in self.roles)
        return is_out and self.accumulate is not None and 2 * self.accumulate <= self.config.per_replica_batch_size

    @property
    def workers(self) -> int:
        """How many train."""
        return self.placement.tasks[0].workers

    @property
    def hosts(self) -> list[str]:
        """Of those that train, in their order; one that is started elsewhere is on the host that TF_CONFIG names."""
        cluster, own = self.placement.tasks[0].cluster, {role.task.name: role.describe() for role in self.roles}
        places = [
            (f"{kind}-{index}", address.rpartition(":")[0])
            for kind in (("worker",) if "ps" in cluster else ("chief", "worker"))
            for index, address in enumerate(cluster.get(kind, ()))
        ]
        return [str(own[name]["host"]) if name in own else host for name, host in places]

    @property
    def leader(self) -> Role:
        """The process that has the first place at the moment."""
        return next(role for role in self.roles if role.task == self.placement.tasks[0])

    @property
    def is_saving(self) -> bool:
        """Whether the chief moves and writes a checkpoint; who waits for that may wait for a peer that is gone."""
        leader, limit = self.leader, self.config.cluster.heartbeat_timeout_seconds
        if leader.exit_status is not None or leader.silent_seconds() > limit:
            return False
        with suppress(FileNotFoundError):
            return SAVING in self.run_directory.heartbeat_file(leader.task.name).read_bytes()
        return False

    @property
    def training(self) -> list[Role]:
        """Roles that leave by themselves; parameter servers and their workers serve for ever."""
        return [role for role in self.roles if role.task.is_chief or self.config.is_synchronous]


def why_lost(gang: Gang, role: Role) -> RoleLost:
    """Why a role ended.

    Raises:
        InputError: when it found the configuration wrong.
    """
    try:
        status, how = role.exit_status or 0, how_it_ended(role)
    except DownloadFailed as error:
        return RoleLost(f"{role.label}: {error} (log: {role.log})")
    still = [(other.silent_seconds(), other) for other in gang.roles if other.exit_status is None]
    frozen = [(seconds, other) for seconds, other in still if seconds > SUSPICIOUS_SECONDS]
    if status == PEER_LOST and frozen:
        seconds, other = max(frozen, key=lambda pair: pair[0])
        return RoleLost(f"{other.label} did not move for {seconds:.0f} s, {role.label} noticed (log: {other.log})")
    if status == NO_MEMORY and gang.config.batch.accumulate == 1:
        in_parts = "batch.accumulate=auto or " if gang.config.engine == "loop" and not gang.config.xla else ""
        how += f"; {in_parts}a smaller batch.size needs less"
    message = f"{role.label} {how} (log: {role.log})"
    is_own = status > 0 and status not in (PEER_LOST, MACHINE_LOST, GPU_TAKEN)
    return RoleLost(message, will_repeat=status == WILL_REPEAT, is_own=is_own)


def supervise(run_directory: RunDirectory, *, on_event: OnEvent, log: Log, launcher: Launcher | None = None) -> None:
    """Run a run directory to its end, or its goal, from its last checkpoint, and again whenever a role is lost.

    With twice as many micro-batches, where `batch.accumulate` is `auto` and a device had no memory for them.
    With fewer workers, where `cluster.min_workers` allows it and there is no place for all; with more again, from a
    checkpoint, once there is.

    At most `cluster.max_restarts` times, after a pause that doubles from 1 s to 60 s while no step is won; not again
    after a failure that would repeat: wrong input, a mistake in the code, a loss that is not finite, or the same error
    (out of memory, for one) twice with no checkpoint in between.

    Args:
        run_directory: created, not complete; the caller holds its lock.
        on_event: gets the chief's events as they come.
        log: gets a line for what a user acts on.
        launcher: places the roles for each attempt; by default `launcher_of` the run.

    Raises:
        RunFailed: naming the role that was lost and its log.
        Preempted: when the run was asked to stop; says whether a checkpoint is saved.
        InputError: when a role found the configuration wrong.
    """
    config = run_directory.read_config()
    launcher = launcher or launcher_of(config)
    placement, restarts = _place(launcher, config), Restarts(config.cluster.max_restarts)
    attempts: Attempts | None = None
    accumulate: int | None = None
    while True:
        leader, on_cpu = placement.tasks[0], bool(config.cluster.virtual_devices)
        try:
            if attempts is None:
                own = run_directory.attempts_file if leader.is_chief else run_directory.attempts_file_of(leader.name)
                attempts = Attempts(own)
                accumulate = read_accumulate(own) if config.batch.accumulate == AUTO else None
            attempts.begin(leader.workers, accumulate, machine=placement.machine, on_cpu=on_cpu)
        except BaseException:
            placement.close()
            raise
        gang = Gang(
            run_directory=run_directory,
            config=config,
            placement=placement,
            attempts=attempts,
            restarts=restarts,
            launcher=launcher,
            on_event=on_event,
            log=log,
            accumulate=accumulate,
        )
        again = _attempt(gang)
        if again is None:
            return
        accumulate = _go_on(gang, again)
        placement = _place(launcher, config, gang.unclear)
        if (workers := placement.tasks[0].workers) != gang.workers:
            log(f"{workers} of {config.cluster.workers} workers from now on")


def _go_on(gang: Gang, again: RoleLost | RoomFound) -> int | None:
    """Tell why there is another attempt, and wait until it is time; the micro-batches that it has, as in a `Gang`.

    Raises:
        RunFailed: when there is none.
    """
    checkpoint = last_checkpoint(gang.run_directory.checkpoints)
    step = step_of(checkpoint) if checkpoint else 0
    if gang.accumulate and gang.lacks_memory:
        gang.log(f"{again}: going on from step {step} with {2 * gang.accumulate} micro-batches a step")
        return 2 * gang.accumulate
    if isinstance(again, RoleLost):
        pause = gang.restarts.take_for_run(again, step)
        gang.log(f"{again}: starting again from step {step} in {pause:.0f} s")
        time.sleep(pause)
    else:
        gang.log(f"{again}: going on from step {step}")
    return gang.accumulate


def _attempt(gang: Gang) -> RoleLost | RoomFound | None:
    """One attempt, and its places given back; why there is to be another one, `None` where there is not."""
    how, again = "interrupted", None
    try:
        if gang.attempts.number == 1 and gang.placement.warning:
            gang.log(f"warning: {gang.placement.warning}")
        with _fence(gang) as gang.fence:
            _run_attempt(gang)
        rests = gang.run_directory.is_at_goal and not gang.run_directory.is_complete
        how = "waits for the other runs of its grid" if rests else "complete"
    except (RoleLost, RoomFound) as error:
        how, again = str(error), error
    except OSError as error:
        # `TimeoutError` and what a web library raises are of this class, too, and say neither file nor errno.
        how = f"{error.filename or gang.run_directory.path}: {error.strerror}" if error.strerror else repr(error)
        raise RunFailed(f"the run cannot go on: {how}") from error
    except Exception as error:
        how = str(error)
        raise
    finally:
        gang.unclear = gang.placement.close()
        gang.attempts.end(how, again.at if isinstance(again, RoleLost) else None)
    return again


def _fence(gang: Gang) -> AbstractContextManager[dict[str, str]]:
    """Where the chief is: the others, started elsewhere by hand, have attempts of their own."""
    tasks, directory = gang.placement.tasks, gang.run_directory
    logs = [directory.logs / f"{task.name}.log" for task in tasks]
    return fence(directory.path, gang.attempts.number, logs) if tasks[0].is_chief else nullcontext({})


def _place(launcher: Launcher, config: RunConfig, avoid: Collection[str] = ()) -> Placement:
    """An elastic run has as many workers as there is room for."""
    is_elastic = config.cluster.min_workers is not None
    return launcher.place(config, avoid=avoid, workers=config.cluster.workers if is_elastic else None)


def _run_attempt(gang: Gang) -> None:
    """Run the roles to their end; whatever ends this call, none of them is alive afterwards.

    A lost worker of a parameter-server run is started again while the others go on. What ends the call from outside
    (Ctrl-C, SIGTERM, cancellation) asks the roles to save a checkpoint first; a second one ends them at once.

    Raises:
        RoleLost: naming the role and its log.
        Preempted: when a role was asked to stop; says whether a checkpoint is saved.
        InputError: when a role found the configuration wrong.
        RunFailed: when the run took too long.
    """
    run_directory, tasks = gang.run_directory, gang.placement.tasks
    if tasks[0].is_chief:
        run_directory.stop_file.unlink(missing_ok=True)
    events, stop = EventReader(run_directory.events_file, from_end=True), StopRequest(run_directory.stop_file)
    try:
        if len(tasks) < tasks[0].roles:
            gang.log(f"waiting for the other roles of TF_CONFIG: start each with  rampline worker {run_directory.path}")
        try:
            for task in tasks:
                gang.start(task)
        except PlaceLost as lost:
            raise RoleLost(str(lost)) from lost
        gang.attempts.placed(gang.hosts)
        if len(set(gang.hosts)) > 1:
            gang.log(f"{run_directory.path.name}: workers on {write_hosts(gang.hosts)}")
        _watch(gang, events, stop)
    except Exception as error:
        end_roles(gang.roles)
        # The chief may have come to the end while they were ended.
        if not (isinstance(error, RoleLost | RoomFound) and run_directory.is_at_goal):
            raise
    except BaseException:
        _stop(gang)
        raise
    else:
        end_roles(gang.roles)
    finally:
        for event in events.read():
            gang.on_event(event)


def _watch(gang: Gang, events: EventReader, stop: StopRequest) -> None:
    is_chief_here = gang.leader.task.is_chief
    met, is_decided = not is_chief_here, False
    while True:
        has_saved = False
        for event in events.read():
            met = met or event["event"] == "met"
            is_decided = is_decided or event["event"] == "decided"
            has_saved = has_saved or (event["event"] == "checkpoint" and event["epoch"] < gang.config.epochs)
            gang.on_event(event)
        if has_saved and not is_decided:
            _check_room(gang)
        if gang.run_directory.is_at_goal or gang.leader.exit_status == 0:
            break
        _check_stopped(gang, stop)
        _check_lost(gang)
        _check_time(gang, met)
        time.sleep(POLL_SECONDS)
    wait_until(lambda: are_gone(gang.training), LAST_ROLES_GRACE_SECONDS)
    if is_chief_here and not gang.run_directory.is_at_goal:
        raise RoleLost(f"{gang.leader.label} ended without a result; its log is {gang.leader.log}")


def _check_room(gang: Gang) -> None:
    """At a checkpoint: an elastic run that could have more workers saves another where all agree to, and leaves.

    Raises:
        RoomFound: to be placed anew.
    """
    if gang.workers == gang.config.cluster.workers or gang.run_directory.is_at_goal:
        return
    room = None
    with suppress(RunFailed):  # nobody answers who knows: the roles go on
        room = workers_now(gang.launcher, gang.config)
    if room is None or room <= gang.workers:
        return
    _ask_to_stop(gang, gang.training)
    if not gang.run_directory.is_at_goal:
        raise RoomFound(f"there is room for {room} workers instead of {gang.workers}")


def _check_stopped(gang: Gang, stop: StopRequest) -> None:
    """A role that was asked to stop tells the others, and all leave: the chief last, after it has saved.

    Only `stop.json` tells that it has: 143 is also the status of a process that a shell or an engine saw SIGTERM end.
    """
    asked = [role for role in gang.roles if role.exit_status in (STOPPED, ENDED_AT_ONCE, -signal.SIGTERM)]
    if not asked:
        return
    leader = gang.leader
    if any(role.exit_status == STOPPED for role in asked):
        # Until the chief has saved and is gone, where it runs here.
        _wait_for_checkpoint(gang, lambda: leader.exit_status is not None and (leader.task.is_chief or stop.is_saved()))
    elif not gang.config.is_synchronous:
        # A server that went without a word: the chief does not know yet, and can still save. Synchronous peers cannot.
        _ask_to_stop(gang, [leader])
    what = "and saved a checkpoint" if stop.is_saved() else "before it could save a checkpoint"
    raise Preempted(f"{asked[0].label} was asked to stop {what}", gang.config.cluster.preempted_exit_status)


def _check_lost(gang: Gang) -> None:
    """Find roles that ended or froze; a parameter server's worker is started again, any other ends the attempt."""
    timeout = gang.config.cluster.heartbeat_timeout_seconds
    for role in gang.roles:
        if role.exit_status is None and role.silent_seconds() > timeout:
            end_roles([role], grace_seconds=0)
            frozen = RoleLost(f"{role.label} did not move for {timeout} s (log: {role.log})")
            _restart_in_place(gang, role, frozen)
    lost = [role for role in gang.roles if role.exit_status not in (None, 0)]
    # The others fail because of the one whose machine is gone, or that a signal ended.
    for role in sorted(lost, key=lambda role: (role.exit_status != MACHINE_LOST, role.exit_status or 0)):
        _restart_in_place(gang, role, why_lost(gang, role))


def _restart_in_place(gang: Gang, role: Role, lost: RoleLost) -> None:
    """Start a lost worker of a parameter-server run again, at its address, where the coordinator looks for it.

    Raises:
        RoleLost: what was lost, where that is not possible.
    """
    is_worker = not gang.config.is_synchronous and role.task.role == "worker" and role.exit_status != MACHINE_LOST
    if not is_worker or lost.will_repeat or not gang.restarts.take():
        raise lost
    gang.log(f"{lost}: starting it again, the others go on")
    gang.attempts.restarted(role.task.name, str(lost))
    try:
        gang.start(role.task)
    except PlaceLost as place:
        raise RoleLost(f"{lost}, and {place}") from place


def _check_time(gang: Gang, met: bool) -> None:
    cluster, seconds = gang.config.cluster, gang.clock()
    if not met and seconds > cluster.rendezvous_timeout_seconds + IMPORT_ALLOWANCE_SECONDS:
        raise RoleLost(f"the roles did not find each other within {seconds:.0f} s: see their logs")
    if cluster.run_timeout_seconds is not None and seconds > cluster.run_timeout_seconds:
        raise RunFailed(f"the run took longer than cluster.run_timeout_seconds={cluster.run_timeout_seconds}")


def _stop(gang: Gang) -> None:
    """Ask the roles to save a checkpoint and leave, then end them; a second Ctrl-C ends them at once."""
    try:
        if any(role.exit_status is None for role in gang.training):
            gang.log("stopping: the run saves a checkpoint first")
        _ask_to_stop(gang, gang.training)
        for role in gang.training:
            if role.exit_status is None:
                gang.log(f"{role.label} did not leave in time and is killed")
        end_roles(gang.roles)
    finally:
        end_roles(gang.roles, grace_seconds=0)


def _ask_to_stop(gang: Gang, roles: Sequence[Role]) -> None:
    """Send SIGTERM, and give the roles the time for a checkpoint."""
    for role in roles:
        role.signal(signal.SIGTERM)
    _wait_for_checkpoint(gang, lambda: are_gone(roles))


def _wait_for_checkpoint(gang: Gang, condition: Callable[[], bool]) -> None:
    """A role that hangs in a checkpoint ends by itself, see `rampline.jobs.heartbeat`."""
    while not wait_until(condition, STOP_GRACE_SECONDS) and gang.is_saving:
        pass
