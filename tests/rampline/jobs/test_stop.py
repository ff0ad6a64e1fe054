"""Asking a role to stop, by a signal or by the file of a role that has no say of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rampline.jobs.exit_status import ENDED_AT_ONCE
from rampline.jobs.stop import LOOK_SECONDS, StopRequest


@pytest.fixture
def handlers() -> Iterator[None]:
    """The test process gets its own handlers back."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_the_request(number: signal.Signals, tmp_path: Path, handlers: None) -> None:
    stop = StopRequest(tmp_path / "stop.json")
    stop.listen()
    assert not stop.is_set()
    os.kill(os.getpid(), number)
    assert stop.signalled
    assert stop.is_set()


def test_a_signal_that_is_repeated_at_once_is_one_and_a_later_one_ends_the_process(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from rampline.jobs import stop; stop.REPEAT_SECONDS = 1.0;"
    code += "stop.StopRequest(Path(sys.argv[1])).listen(); print('listening', flush=True);"
    code += "[time.sleep(0.05) for _ in range(999)]"
    command = [sys.executable, "-c", code, str(tmp_path / "stop.json")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "listening\n"
    process.terminate()
    time.sleep(0.3)
    process.terminate()
    time.sleep(1.2)
    assert process.poll() is None
    process.terminate()
    assert process.wait(10) == ENDED_AT_ONCE
    process.stdout.close()


def test_a_server_passes_the_request_on_and_leaves_once_the_chief_has_saved(tmp_path: Path) -> None:
    chief, server = StopRequest(tmp_path / "stop.json"), StopRequest(tmp_path / "stop.json")
    server.pass_on("ps-0")
    server.pass_on("ps-0")
    time.sleep(LOOK_SECONDS)
    assert chief.is_set()
    assert not chief.signalled
    assert not server.is_saved()
    chief.tell_saved()
    assert server.is_saved()


def test_what_an_earlier_attempt_left_does_not_end_a_server_that_is_started_first(tmp_path: Path) -> None:
    StopRequest(tmp_path / "stop.json").tell_saved()
    server = StopRequest(tmp_path / "stop.json")
    assert not server.is_saved()
    (tmp_path / "stop.json").unlink()
    assert not server.is_saved()
    server.pass_on("ps-0")
    StopRequest(tmp_path / "stop.json").tell_saved()
    assert server.is_saved()
