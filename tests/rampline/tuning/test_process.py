"""A trial that kills its process does not fit; the search goes on with what may fit in another process."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from processes import processes_of

from rampline.config import BatchConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.tuning.trial import DOES_NOT_FIT, MEASURED, Request, Work, with_changes
from rampline.tuning.tuner import Figures, run_request

pytestmark = pytest.mark.usefixtures("forks")
CONFIG = RunConfig(batch=BatchConfig(size=8), steps_per_call=4)


def work(dataset: PreparedDataset, **changes: object) -> Work:
    config = with_changes(CONFIG, {key.replace("__", "."): value for key, value in changes.items()})
    return Work(config=config, dataset=str(dataset.directory))


def kill_when_it_begins(folder: Path, number: int) -> None:
    """As the kernel does when memory runs out."""
    file, deadline = folder / "events.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline:
        events = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        if any(event["event"] == "begins" and event["number"] == number for event in events):
            for pid in processes_of(folder):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.005)


@pytest.mark.slow
def test_larger_batches_than_one_that_was_killed_are_not_tried(digits: PreparedDataset, tmp_path: Path) -> None:
    batches = tuple(work(digits, batch__size=size) for size in (32, 64, 4))
    request = Request(before=work(digits), candidates=batches, seconds=600, is_ladder=True, with_input=True)
    killer = threading.Thread(target=kill_when_it_begins, args=(tmp_path / "0", 0))
    killer.start()
    told: dict[int, Figures] = {}
    answers = run_request(request, tmp_path, CONFIG, on_trial=lambda number, outcome: told.update({number: outcome}))
    killer.join()
    assert told[0]["status"] == DOES_NOT_FIT
    assert re.match(r"its process was ended by signal 9 \(log: \S+trials\.log\)$", told[0]["reason"])
    assert told[2]["status"] == MEASURED  # the smaller one, in a second process
    assert set(told) == {0, 2} == set(answers.trials)
    assert len(answers.baseline) == 5
    assert processes_of(tmp_path) == []


def test_a_run_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    request = Request(before=Work(config=CONFIG, dataset=str(tmp_path / "none")), candidates=(), seconds=1)
    with pytest.raises(RunFailed, match=r"the run cannot be measured: .*none holds no prepared dataset"):
        run_request(request, tmp_path / "work", CONFIG, on_trial=lambda number, outcome: None)
