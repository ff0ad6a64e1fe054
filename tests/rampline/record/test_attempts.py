"""The table of a run's attempts, from what is written of each."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rampline.record.attempts import MOST_ATTEMPTS, Attempts, tell_attempts, write_hosts
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory
from rampline.record.units import NONE, TIMES

LOST = "worker 1 on b was ended by signal 9 (log: /home/me/runs/digits/e/multi-worker/logs/worker-1.log)"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def attempt(
    directory: RunDirectory,
    hosts: Sequence[str],
    how: str | None,
    steps: Sequence[int] = (),
    attempts: Attempts | None = None,
) -> None:
    """An attempt that went on from the first of `steps`, and has kept the others."""
    attempts = attempts or Attempts(directory.attempts_file)
    attempts.begin(len(hosts))
    number = attempts.number
    if hosts:
        attempts.placed(hosts)
    events = EventWriter(directory.events_file)
    for step in steps[:1]:
        events.write("started", attempt=number, first_step=step)
    for step in steps[1:]:
        events.write("checkpoint", epoch=1, step=step, path="", seconds=0.1)
    if how:
        attempts.end(how)


def test_each_attempt_has_its_hosts_its_steps_and_its_end(directory: RunDirectory) -> None:
    attempt(directory, ["a", "b"], LOST, [0, 10, 20])
    attempt(directory, [], "node b does not answer")
    attempt(directory, ["a", "c"], None, [20])
    attempt(directory, ["a", "a"], "complete", [20, 30])
    assert tell_attempts(directory) == [
        ("1", "a, b", "0 → 20", "worker 1 on b was ended by signal 9"),
        ("2", NONE, NONE, "node b does not answer"),
        ("3", "a, c", "20 →", "its command was killed"),
        ("4", f"a {TIMES}2", "20 → 30", "complete"),
    ]


def test_an_attempt_that_was_killed_with_its_command_counts_as_long_as_its_chief_has_told_of_it(
    directory: RunDirectory,
) -> None:
    Attempts(directory.attempts_file).begin(1)
    told = [{"event": "started", "attempt": 1, "startup_seconds": 20.0, "monotonic": 100.0}]
    told += [{"event": "checkpoint", "monotonic": 150.0}, {"event": "progress", "monotonic": 400.0}]
    directory.events_file.write_text("".join(json.dumps(event) + "\n" for event in told))
    attempts = Attempts(directory.attempts_file)
    attempts.begin(1)
    assert attempts.wall_seconds_before == 320
    time.sleep(0.2)
    attempts.end("worker 1 was lost, with no checkpoint in between")
    # The one after it is killed before its chief has told of anything.
    attempts.begin(1)
    assert 320.2 < attempts.wall_seconds_before < 330
    again = Attempts(directory.attempts_file)
    again.begin(1)
    assert 320.2 < again.wall_seconds_before < 330


def test_one_that_goes_on_has_no_end(directory: RunDirectory) -> None:
    attempt(directory, ["a", "b"], None, [0])
    assert tell_attempts(directory) == [("1", "a, b", "0 →", NONE)]


@pytest.mark.parametrize("hosts", [["a"], ["a", "a"]])
def test_a_run_that_was_started_once_on_one_host_has_no_table(directory: RunDirectory, hosts: list[str]) -> None:
    assert tell_attempts(directory) == []
    attempt(directory, hosts, "complete", [0, 10])
    assert tell_attempts(directory) == []


def test_a_table_fits_into_a_tag(directory: RunDirectory) -> None:
    hosts, attempts = [f"node-{number}.{'x' * 50}" for number in range(64)], Attempts(directory.attempts_file)
    for _ in range(3 * MOST_ATTEMPTS):
        attempt(directory, hosts, "because " * 100, [0], attempts)
    rows = tell_attempts(directory)
    assert [row[0] for row in rows[:: MOST_ATTEMPTS - 1]] == [str(2 * MOST_ATTEMPTS + 1), str(3 * MOST_ATTEMPTS)]
    assert sum(len(cell) + 4 for row in rows for cell in row) < 8000


def test_hosts_are_named_once_and_of_many_the_first() -> None:
    assert write_hosts(["a", "b", "a"]) == f"a {TIMES}2, b"
    assert write_hosts("abcdefgh") == "a, b, c, d, e, f and 2 more"
