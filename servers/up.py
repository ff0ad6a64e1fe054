"""`rampline up` and `rampline down`: the supervisor is started and followed, and ended from anywhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from typing import TextIO

import psutil
from rich.console import Console

from rampline.errors import ERROR_MARK, InputError, RamplineError
from rampline.jobs.waiting import wait_until
from rampline.record.home import Home
from rampline.servers.addresses import host_elsewhere, is_loopback
from rampline.servers.processes import counting_signals, end_leftovers, is_ending, is_gone, lock_holder, send
from rampline.servers.running import Servers, read_state, running_servers, servers_folder
from rampline.servers.secret import sign_in_lines
from rampline.servers.server_plan import Plan, Request, make_plan
from rampline.servers.server_supervisor import STAY

POLL_SECONDS = 0.1
# Longer than the orderly way takes.
DOWN_SECONDS = 75.0
KILLED_SECONDS = 10.0


def start_servers(request: Request, console: Console, *, detach: bool) -> None:
    """Start the supervisor, and show what it says: until all answers, or without `detach` until it ends.

    Ctrl-C, SIGTERM, a terminal that is closed, and a `kill -9` of this process end it, but not after `detach`. Where
    the servers of this home run already, their addresses are told, and that is all.

    Raises:
        InputError: when it cannot be done as asked; nothing was started.
        RamplineError: when a server does not start, or dies again and again: with the supervisor's words.
    """
    home, plan = request.home, make_plan(request)
    if lock_holder(home) is not None and not is_ending(home):
        _tell_of_other(home, console)
        return
    folder = servers_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    log, options = folder / "up.log", {name: value for name, value in asdict(request).items() if name != "home"}
    with open(log, "ab") as output, open(log, encoding="utf-8") as lines:
        lines.seek(0, 2)
        process = subprocess.Popen(
            # `-P`: the caller's folder is not searched for modules.
            [sys.executable, "-P", "-m", "rampline.servers.server_supervisor"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(options)}\n".encode())
        process.stdin.flush()
        _Follower(plan, process, lines, console).follow(detach=detach)


class _Follower:
    def __init__(self, plan: Plan, process: subprocess.Popen[bytes], lines: TextIO, console: Console) -> None:
        self._plan, self._process, self._lines, self._console = plan, process, lines, console
        self._home, self._error = plan.request.home, ""

    def follow(self, *, detach: bool) -> None:
        is_up = False
        try:
            with waiting(self._console, "starting"):
                self._show_until(self._answers)
            is_up = True
            self._tell(ends_by_key=not detach and self._console.is_terminal)
            if detach:
                assert self._process.stdin is not None
                self._process.stdin.write(STAY.encode())
                self._process.stdin.close()
            else:
                self._show_until(lambda: False)
        except (KeyboardInterrupt, SystemExit):
            self._end()
            # After that, a signal is how a user ends it.
            if not is_up:
                raise

    def _answers(self) -> bool:
        servers = read_state(self._home)
        return servers is not None and servers.ready and servers.pid == self._process.pid

    def _show_until(self, is_enough: Callable[[], bool]) -> None:
        """Show its lines, until there is enough or it has ended.

        Raises:
            RamplineError: when it could not go on.
        """
        while True:
            # Asked first: what it printed before that is read after it.
            enough, status = is_enough(), self._process.poll()
            self._show_lines()
            if enough or status == 0:
                return
            if status is not None:
                why = self._error or f"the supervisor ended with status {status}: see {self._lines.name}"
                raise (InputError if status == InputError.exit_status else RamplineError)(why)
            time.sleep(POLL_SECONDS)

    def _tell(self, *, ends_by_key: bool) -> None:
        _tell_pages(self._home, self._console, self._plan, *_elsewhere(self._plan))
        how = "Ctrl-C, or `rampline down`," if ends_by_key else "`rampline down`"
        self._console.print(f"logs in {servers_folder(self._home)}; {how} ends all of it")

    def _end(self) -> None:
        """Ask it to end; a second Ctrl-C asks it to wait for nothing."""
        if self._console.is_terminal:
            self._console.print("Ctrl-C again ends all at once")
        self._process.terminate()
        with counting_signals() as count:
            asked = 0
            while self._process.poll() is None:
                if count() > asked:
                    asked = count()
                    self._process.terminate()
                self._show_lines()
                time.sleep(POLL_SECONDS)
            self._show_lines()

    def _show_lines(self) -> None:
        for line in self._lines:
            if line.startswith(ERROR_MARK):
                self._error = line.removeprefix(ERROR_MARK)
            else:
                self._console.print(line.rstrip("\n"))


def end_servers(home: Home) -> str:
    """End the `rampline up` of `home`, and what an earlier one has left; returns what was done, for the user.

    Raises:
        InputError: when it runs on another machine.
        RamplineError: when it cannot be ended.
    """
    holder = lock_holder(home)
    if holder is None or is_ending(home):
        found = end_leftovers(home)
        return "ended what a `rampline up` that was killed has left" if found else f"nothing is up in {home.root}"
    send(holder, signal.SIGTERM)
    if not _goes(holder, DOWN_SECONDS):
        send(holder, signal.SIGKILL)
        if not _goes(holder, KILLED_SECONDS):
            raise RamplineError(f"process {holder}, which runs the servers of {home.root}, cannot be ended")
    end_leftovers(home)
    return f"ended `rampline up` (process {holder}) and all that it had started"


def _goes(pid: int, seconds: float) -> bool:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return wait_until(lambda: is_gone(process), seconds, every=POLL_SECONDS)
    return True


def waiting(console: Console, text: str) -> AbstractContextManager[object]:
    """A spinner with `text`, in a terminal."""
    return console.status(text) if console.is_terminal else nullcontext()


def _tell_pages(home: Home, console: Console, servers: Plan | Servers, *notes: str) -> None:
    """What to open, and what to click there.

    The links that sign in hold the secret: a terminal is shown them, and no file, also where FORCE_COLOR makes it one.
    """
    for line in (
        "",
        f"train      {servers.prefect_url}/deployments: study, Run, Custom run, fill in the form, Submit",
        f"compare    {servers.mlflow_url}: an experiment, tick its runs, Compare",
        "",
        *notes,
        *sign_in_lines(home, with_secret=console.file.isatty()),
    ):
        console.print(line)


def _elsewhere(plan: Plan) -> list[str]:
    """What a user should know who lets other machines in."""
    if is_loopback(plan.address):
        return []
    return [
        f"from other machines: {host_elsewhere(plan.address)} instead, with the passwords; neither server encrypts, so "
        "keep to a private network, or put a proxy with TLS before them (and its name into RAMPLINE_ALLOWED_HOSTS)",
        "",
    ]


def _tell_of_other(home: Home, console: Console) -> None:
    """Started twice: the addresses, if all is well."""
    holder = lock_holder(home)
    servers = running_servers(home)
    if servers is None:
        raise InputError(
            f"`rampline up` of {home.root} (process {holder}) is starting or ending, a server does not answer, or a "
            "worker was started by hand there: see `rampline status`; `rampline down` ends it"
        )
    console.print(f"already up in {home.root} (process {servers.pid}); `rampline down` ends it")
    _tell_pages(home, console, servers)
