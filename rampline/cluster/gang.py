"""The roles of one attempt on this machine: started, looked after, and what it means when one is lost."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from rampline.cluster.attempts import Attempt
from rampline.cluster.exit_status import PEER_LOST, WILL_REPEAT, WRONG_INPUT
from rampline.cluster.private_network import Network
from rampline.cluster.process import RoleProcess, start_role
from rampline.cluster.restarts import Restarts, RoleLost
from rampline.cluster.tf_config import Task
from rampline.config import RunConfig
from rampline.errors import InputError
from rampline.files import read_json, write_json
from rampline.heartbeat import HeartbeatWatch
from rampline.run_directory import RunDirectory

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
