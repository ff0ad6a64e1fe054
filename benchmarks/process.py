"""One contender in a process group of its own: started, waited for, ended with everything it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            # Ctrl-C reaches this process alone, which then ends the whole group.
            start_new_session=True,
        )
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
