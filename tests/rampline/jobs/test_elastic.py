"""A run that loses workers goes on with fewer, and grows again: with `sum: exact` nothing else differs."""

import dataclasses
from pathlib import Path

import pytest
from faults import Resizes, assert_bit_equal, examples_seen
from runs import MakeRun, make_config
from stored_data import store_here

from rampline.config import DataConfig, LearningRateConfig, OptimizerConfig, RunConfig
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import read_workers
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory


def make_elastic(workers: int, **changes: object) -> RunConfig:
    """BatchNorm, Dropout and Adam; no restart but those for lost workers is allowed."""
    settings = {"workers": workers, "min_workers": 1, "sum": "exact", "max_restarts": workers - 1}
    config = make_config("multi_worker", model="small_models:with_all_state", batch=13, **settings)
    optimizer, rate = OptimizerConfig(name="adam"), LearningRateConfig(peak=1e-3)
    return dataclasses.replace(config, optimizer=optimizer, learning_rate=rate, log_examples=True, **changes)


def run_resized(directory: RunDirectory, whole: RunDirectory, sizes: tuple[int, ...], epochs: int) -> list[str]:
    """Run both, the first with so many workers in turn; nothing but the times may differ."""
    supervise(whole, on_event=lambda event: None, log=print)
    resizes, lines = Resizes(directory, sizes, epochs), list[str]()
    supervise(directory, on_event=resizes.hear, log=lines.append, launcher=resizes.launcher)
    assert read_workers(directory.attempts_file) == list(sizes)
    assert_bit_equal(directory, whole)
    assert examples_seen(directory) == examples_seen(whole)
    ours, theirs = ([e["metrics"] for e in d.read_events("epoch")] for d in (directory, whole))
    for name in ("train_accuracy", "val_loss", "val_accuracy", "learning_rate"):
        assert {m[name] for m in ours} == {m[name] for m in theirs}
    return lines


@pytest.mark.long
def test_three_two_one_and_three_workers(rampline_home: Path, make_run: MakeRun) -> None:
    dataset = store_here(DataConfig(source="digits"), Home(root=rampline_home)).directory
    config = make_elastic(3, epochs=14, checkpoint_every_steps=50, steps_per_call=4)
    resized, whole = (make_run(config, dataset=dataset) for _ in range(2))
    lines = run_resized(resized, whole, (3, 2, 1, 3), epochs=3)
    assert [line for line in lines if line.endswith(" workers from now on")] == [
        "2 of 3 workers from now on",
        "1 of 3 workers from now on",
        "3 of 3 workers from now on",
    ]
    assert sum("there is room for 3 workers instead of 1: going on from step " in line for line in lines) == 1
