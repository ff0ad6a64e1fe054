"""One variant in a process group of its own: started, waited for, ended with everything it started."""

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

from benchmarks.variants.turns import OPTION, READY

ROOT = Path(__file__).parents[1]
GRACE_SECONDS = 5.0


class VariantError(Exception):
    """A variant gave no figures."""


def run_variant(arguments: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> dict[str, Any]:
    """Run `python -m ARGUMENTS` in the root of the project; returns the JSON object of its last line of output.

    Raises:
        VariantError: it did not exit with 0, printed no such line or took longer than `timeout_seconds`.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = _start(arguments, environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise VariantError(f"no end after {timeout_seconds:.0f} s") from None
        finally:
            end_group(process)
        if status:
            raise VariantError(f"exit status {status}: {_last_line(errors) or 'no message'}")
        return _parse(_last_line(out))


class TurnTaker:
    """A variant that stays, and times a block when it is its turn (`benchmarks.variants.turns`)."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipe = subprocess.PIPE
        self.process = _start([*arguments, OPTION], environment, stdin=pipe, stdout=pipe, stderr=self.errors)
        self.unread = b""
        self.is_ready = False

    def turn(self) -> dict[str, Any]:
        """Wait until it is ready, and let it time a block; returns the figures of the block.

        Raises:
            VariantError: it has ended, or answers nothing for `timeout_seconds`.
        """
        deadline = time.monotonic() + self.timeout_seconds
        while not self.is_ready:
            self.is_ready = self._read_line(deadline) == READY
        os.write(self.process.stdin.fileno(), b"go\n")
        while not (line := self._read_line(deadline)).startswith("{"):
            pass
        return _parse(line)

    def end(self) -> None:
        """End it with all that it has started."""
        end_group(self.process)
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()

    def _read_line(self, deadline: float) -> str:
        """The next line, without its end."""
        pipe = self.process.stdout.fileno()
        while b"\n" not in self.unread:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise VariantError(f"no answer after {self.timeout_seconds:.0f} s")
            read = os.read(pipe, 65536)
            if not read:
                status = self.process.wait()
                raise VariantError(f"exit status {status}: {_last_line(self.errors) or 'no message'}")
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


def _parse(line: str) -> dict[str, Any]:
    try:
        figures = json.loads(line)
    except ValueError:
        figures = None
    if not isinstance(figures, dict):
        raise VariantError(f"its last line is no JSON object: {line[:80]!r}")
    return figures
