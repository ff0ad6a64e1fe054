"""A run whose roles are on the two hosts of `hosts.py`, started there as a user would on two machines."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
from hosts import Commands, Host, Hosts, last_words

from rampline.devices import available_cores
from rampline.record.run_directory import RunDirectory

CHIEF = """
import sys
from pathlib import Path
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory
supervise(RunDirectory(Path(sys.argv[1])), on_event=lambda event: None, log=print)
"""


@dataclass(kw_only=True)
class TwoHostRun(Commands):
    """Commands of one run; the first of them is the chief's.

    Attributes:
        commands: by `ROLE-INDEX`.
    """

    hosts: Hosts
    directory: RunDirectory
    commands: dict[str, Popen] = field(default_factory=dict)

    def role_pids(self, host: Host) -> set[int]:
        """Processes of roles on a host, without those that have ended."""
        return {pid for pid in host.pids() if _is_role(pid)}

    def events(self, kind: str, *, since: float = 0.0) -> list[dict[str, Any]]:
        """What the chief told after `since`, in the time of `time.time()`."""
        return [event for event in self.directory.read_events() if event["event"] == kind and event["time"] > since]

    def have_failed(self) -> bool:
        return any(process.poll() for process in self.commands.values())

    def wait_to_end(self, seconds: float = 240) -> None:
        """Until all commands have left with status 0."""
        self.wait_for(lambda: all(p.poll() is not None for p in self.commands.values()), seconds, "the end of the run")
        assert {name: p.returncode for name, p in self.commands.items()} == dict.fromkeys(self.commands, 0), self.said()

    def attempts(self) -> int:
        """How often the chief's side was started."""
        lines = self.directory.attempts_file.read_text().splitlines()
        return sum(json.loads(line)["event"] == "attempt" for line in lines)

    def said(self) -> str:
        return f"{super().said()}\n{last_words(self.directory.logs)}"


@contextmanager
def start_on(hosts: Hosts, directory: RunDirectory, logs: Path) -> Iterator[TwoHostRun]:
    """Start every role: worker 0 (or the chief, the ps and a worker) on the first host, a worker on the second.

    `make_hosts` kills what is left of them.
    """
    first, second = hosts.hosts
    if directory.read_config().strategy == "multi_worker":
        cluster = {"worker": [f"{first.address}:23450", f"{second.address}:23450"]}
        places = {("worker", 0): first, ("worker", 1): second}
    else:
        cluster = {"chief": [f"{first.address}:23450"], "ps": [f"{first.address}:23451"]}
        cluster["worker"] = [f"{first.address}:23452", f"{second.address}:23452"]
        places = {("chief", 0): first, ("ps", 0): first, ("worker", 0): first, ("worker", 1): second}
    run = TwoHostRun(hosts=hosts, directory=directory, logs=logs)
    logs.mkdir(parents=True, exist_ok=True)
    # As many as each of two workers has on one machine: with another number, sums are of other parts.
    threads = {"TF_NUM_INTRAOP_THREADS": str(max(1, available_cores() // 2))}
    for (role, index), host in places.items():
        task = {"cluster": cluster, "task": {"type": role, "index": index}}
        worker = [str(Path(sys.executable).with_name("rampline")), "worker"]
        command = worker if run.commands else [sys.executable, "-c", CHIEF]
        with open(logs / f"{role}-{index}-command.log", "wb") as log:
            run.commands[f"{role}-{index}"] = host.start(
                [*command, str(directory.path)],
                env={**os.environ, "TF_CONFIG": json.dumps(task), "PYTHONUNBUFFERED": "1", **threads},
                stdout=log,
                stderr=log,
            )
    try:
        yield run
    finally:
        for process in run.commands.values():
            process.kill()
            process.wait()


def _is_role(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return "rampline.worker" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
