"""One contender in a process group of its own: started, waited for, ended with everything it started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.turns import OPTION, READY

ROOT = Path(__file__).parents[1]
GRACE_SECONDS = 5.0


class ContenderError(Exception):
    """A contender gave no figures; `seconds` is how long it took."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


def run_contender(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_seconds: float
) -> tuple[dict[str, Any], float]:
    """Run `python -m ARGUMENTS` in the root of the project.

    Returns:
        The JSON object of its last line of standard output, and its wall seconds.

    Raises:
        ContenderError: it did not exit with 0, printed no such line or took longer than `timeout_seconds`.
    """
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = _start(arguments, environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise ContenderError(f"no end after {timeout_seconds:.0f} s", timeout_seconds) from None
        finally:
            end_group(process)
        seconds = time.perf_counter() - started
        if status:
            raise ContenderError(f"exit status {status}: {_last_line(errors) or 'no message'}", seconds)
        return _parse(_last_line(out), seconds), seconds


class TurnTaker:
    """A contender that stays, and times a block when it is its turn (`benchmarks.contenders.turns`)."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipe = subprocess.PIPE
        self.process = _start([*arguments, OPTION], environment, stdin=pipe, stdout=pipe, stderr=self.errors)
        self.unread = b""
        self.is_ready = False

    def turn(self) -> tuple[dict[str, Any], float]:
        """Wait until it is ready, and let it time a block.

        Returns:
            The figures of the block, and the wall seconds of all this.

        Raises:
            ContenderError: it has ended, or answers nothing for `timeout_seconds`.
        """
        started = time.perf_counter()
        while not self.is_ready:
            line = self._read_line(started)
            self.is_ready = line == READY
            if line.startswith("{"):  # why it is not measured
                return _parse(line, 0.0), time.perf_counter() - started
        os.write(self.process.stdin.fileno(), b"go\n")
        while not (line := self._read_line(started)).startswith("{"):
            pass
        seconds = time.perf_counter() - started
        return _parse(line, seconds), seconds

    def end(self) -> None:
        """End it with all that it has started."""
        end_group(self.process)
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()

    def _read_line(self, started: float) -> str:
        """The next line, without its end."""
        pipe = self.process.stdout.fileno()
        while b"\n" not in self.unread:
            seconds = time.perf_counter() - started
            if not select.select([pipe], [], [], max(0.0, self.timeout_seconds - seconds))[0]:
                raise ContenderError(f"no answer after {self.timeout_seconds:.0f} s", seconds)
            read = os.read(pipe, 65536)
            if not read:
                status = self.process.wait()
                raise ContenderError(f"exit status {status}: {_last_line(self.errors) or 'no message'}", seconds)
            self.unread += read
        line, _, self.unread = self.unread.partition(b"\n")
        return line.decode(errors="replace").strip()


def _start(arguments: Sequence[str], environment: Mapping[str, str], **streams: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", **environment},
        # Ctrl-C reaches this process alone, which then ends the whole group.
        start_new_session=True,
        **streams,
    )


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process and what it has started, by their process group."""
    deadline = time.monotonic() + GRACE_SECONDS
    number = signal.SIGTERM
    while _signal_group(process.pid, number):
        process.poll()
        time.sleep(0.02)
        number = signal.SIGKILL if time.monotonic() > deadline else 0
    process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Whether any process of the group was there to get the signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _last_line(file: Any) -> str:
    file.seek(0)
    lines = [line.strip() for line in file if line.strip()]
    return lines[-1] if lines else ""


def _parse(line: str, seconds: float) -> dict[str, Any]:
    try:
        figures = json.loads(line)
    except ValueError:
        figures = None
    if not isinstance(figures, dict):
        raise ContenderError(f"its last line is no JSON object: {line[:80]!r}", seconds)
    return figures
