"""Steps per call: fixed, or grown until a call takes its time; and the examples of each step."""

import json
from pathlib import Path

import numpy as np
import pytest

from rampline.training.engine import LEAST_CALL_SECONDS, TRAIN, CallPacer, ExamplesLog


def calls(pacer: CallPacer, steps: int, step_seconds: float) -> list[int]:
    """The calls for so many steps of that length; the first takes 10 s longer."""
    made = []
    for _, count in pacer.split(TRAIN, steps):
        pacer.note(count, count * step_seconds + (0 if made else 10))
        made.append(count)
    return made


def test_a_number_is_kept():
    assert calls(CallPacer(16), 40, 0.0) == [16, 16, 8]


def test_calls_double_until_they_take_half_a_second():
    made = calls(CallPacer("auto"), 1000, 0.004)
    assert made[:9] == [1, 1, 2, 4, 8, 16, 32, 64, 128]
    assert set(made[9:-1]) == {128}
    assert LEAST_CALL_SECONDS <= 128 * 0.004 <= 2 * LEAST_CALL_SECONDS
    assert sum(made) == 1000


def test_a_long_step_is_a_call():
    assert calls(CallPacer("auto"), 4, 2.0) == [1, 1, 1, 1]


def test_a_call_cut_short_by_the_epoch_does_not_end_the_growth():
    pacer = CallPacer("auto", compiling=0)
    epochs = []
    for _ in range(3):
        epochs.append(list(pacer.split(TRAIN, 7)))
        for count in (1, 2, 3):
            pacer.note(count, 0.001)
    assert [count for _, count in epochs[0]] == [1, 1, 1, 1, 1, 1, 1]
    assert [count for _, count in epochs[1]] == [4, 3]
    pacer.note(3, 9.0)
    pacer.note(4, 0.001)
    assert pacer.longest(TRAIN, 100) == 8


@pytest.mark.parametrize("setting, expected", [("auto", [(0, 30)]), (8, [(0, 8), (8, 8), (16, 8), (24, 6)])])
def test_a_probe_makes_its_round_in_one_call_or_in_those_of_the_run(setting, expected):
    assert list(CallPacer(setting).split("real", 30)) == expected


def test_the_first_call_of_each_worker_compiles():
    pacer = CallPacer("auto", compiling=2)
    for _ in range(2):
        pacer.note(1, 60.0)
    pacer.note(1, 0.01)
    assert pacer.longest(TRAIN, 100) == 2


def test_examples_after_a_kill_have_a_line_of_their_own(tmp_path: Path):
    file = tmp_path / "examples" / "chief-0.jsonl"
    ExamplesLog(file, 1).append(0, np.array([[3, -1], [5, 4]]))
    whole = file.read_text()
    file.write_text(whole + whole[:20])
    ExamplesLog(file, 2).append(1, np.array([[5, 4]]))
    first, second = map(json.loads, file.read_text().splitlines())
    assert first == {"attempt": 1, "first_step": 0, "examples": [[3], [5, 4]]}
    assert second == {"attempt": 2, "first_step": 1, "examples": [[5, 4]]}
