"""A trial that kills its process does not fit; the search goes on with what may fit, each in a process of its own."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest
from command_line import wait_until
from processes import processes_of

from rampline.config import BatchConfig, ModelConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.record.events import EventReader
from rampline.tuning.trial import BATCH, DOES_NOT_FIT, MEASURED, NOT_TRIED, Limits
from rampline.tuning.tuner import OUT_OF_TIME, Tuner

pytestmark = pytest.mark.usefixtures("forks")
CONFIG = RunConfig(batch=BatchConfig(size=8), precision="mixed_bfloat16", xla=True)


def make_tuner(dataset: str, folder: Path, *, seconds: float = 600, lines: list[str] | None = None) -> Tuner:
    return Tuner(
        run="run",
        config=CONFIG,
        dataset=dataset,
        limits=Limits(train_examples=84, max_batch=32),
        seconds=seconds,
        folder=folder,
        log=([] if lines is None else lines).append,
    )


def kill_when_it_is_ready(folder: Path) -> None:
    """As the kernel does when memory runs out."""
    events = EventReader(folder / "events.jsonl")
    wait_until(lambda: any(events.read("ready")), 120, every=0.005)
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_larger_batches_than_one_that_was_killed_are_not_tried(digits: PreparedDataset, tmp_path: Path) -> None:
    killer = threading.Thread(target=kill_when_it_is_ready, args=(tmp_path / "batch-0",))
    killer.start()
    outcome = make_tuner(str(digits.directory), tmp_path).tune()
    killer.join()
    tried = {trial.label: trial for trial in outcome.trials if trial.group == BATCH}
    assert tried["batch.size=16"].status == DOES_NOT_FIT
    assert re.match(r"its process was ended by signal 9 \(log: \S+\)$", tried["batch.size=16"].reason)
    assert (tried["batch.size=32"].status, tried["batch.size=32"].reason) == (
        NOT_TRIED,
        "larger than one that does not fit",
    )
    # The smaller one, in a process of its own.
    assert tried["batch.size=4"].status == MEASURED
    assert len(outcome.baseline) in (2, 5)
    assert (outcome.largest_batch_that_fits, min(outcome.batches(DOES_NOT_FIT))) == (8, 16)
    assert outcome.adopted == {} or outcome.adopted == {"xla": False}  # the batch is not allowed to change
    assert processes_of(tmp_path) == []


def test_a_run_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the run cannot be measured: .*none holds no prepared dataset"):
        make_tuner(str(tmp_path / "none"), tmp_path / "work").tune()


@pytest.mark.long
def test_a_search_with_no_time_has_one_trial(digits: PreparedDataset, tmp_path: Path) -> None:
    lines: list[str] = []
    outcome = make_tuner(str(digits.directory), tmp_path, seconds=0.1, lines=lines).tune()
    assert len([trial for trial in outcome.trials if trial.rounds]) == 1
    assert {trial.reason for trial in outcome.trials if not trial.rounds} == {OUT_OF_TIME}
    assert lines[0].startswith("batch.size=16: x ")


@pytest.mark.long
def test_a_model_that_its_function_compiles_keeps_its_own_learning_rate(
    digits: PreparedDataset, tmp_path: Path
) -> None:
    outcome = Tuner(
        run="run",
        config=RunConfig(batch=BatchConfig(size=4), model=ModelConfig(name="compiled_models:with_everything")),
        dataset=str(digits.directory),
        limits=Limits(train_examples=84, max_batch=16, allow_batch=True),
        seconds=600,
        folder=tmp_path,
        log=print,
    ).tune()
    assert outcome.is_compiled
    assert [key for key in outcome.adopted if key.split(".")[0] in ("batch", "learning_rate")] == ["batch.size"]
