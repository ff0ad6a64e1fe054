"""Runs that stop before their last epoch, in processes of their own that are killed or have clocks of their own."""

import dataclasses
import time
from typing import Any

import pytest
from faults import Faults, Hold, Places, assert_bit_equal, run_with
from runs import make_config

from rampline.config import ExplainConfig, RunConfig, StopConfig
from rampline.files import read_json
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import read_workers
from rampline.record.checkpoints import last_checkpoint, read_progress, step_of
from rampline.record.run_directory import RunDirectory

pytestmark = pytest.mark.long
STEPS = 5  # of an epoch


def make_stopping(strategy: str, *, peak: float = 0.02, stop: StopConfig, **cluster: Any) -> RunConfig:
    config = make_config(strategy, model="small_models:with_all_state", **cluster)
    rate = dataclasses.replace(config.learning_rate, peak=peak)
    return dataclasses.replace(config, epochs=60, steps_per_call=1, learning_rate=rate, stop=stop)


def outcome(directory: RunDirectory) -> tuple[int, int, str]:
    result = read_json(directory.result_file)
    return result["epochs"], result["steps"], result["stopped"]


@pytest.mark.parametrize(
    ("strategy", "cluster", "role"),
    [
        ("single", {}, "chief-0"),
        ("multi_worker", {"workers": 2}, "worker-1"),
    ],
)
def test_a_killed_run_stops_after_the_same_epoch_with_the_same_bits(
    strategy: str, cluster: dict, role: str, make_run
) -> None:
    config = make_stopping(strategy, stop=StopConfig(patience=3), **cluster)
    whole, hit = make_run(config), make_run(config)
    supervise(whole, on_event=lambda event: None, log=print)
    epochs, steps, stopped = outcome(whole)
    assert 4 < epochs < 60
    assert stopped == f"after epoch {epochs} of 60: no better validation loss for 3 epochs"
    # In the epoch that is the last, two steps after a checkpoint, so patience has been counted before.
    run_with(Faults(hit, role, Hold(hit, role, step=steps - STEPS + 2)))
    assert outcome(hit) == (epochs, steps, stopped)
    assert_bit_equal(hit, whole)


def test_workers_leave_an_epoch_together_when_the_chief_says_that_the_time_is_over(make_run) -> None:
    """The second worker stands still in the second epoch until the time is over, which it does not know of."""
    config = make_stopping("multi_worker", stop=StopConfig(max_minutes=0.5), workers=2)
    directory, began = make_run(config), time.monotonic()
    hold = Hold(directory, "worker-1", step=STEPS + 2)

    def wait(event: dict) -> None:
        if event["event"] == "epoch":
            hold.await_stop()
            time.sleep(max(0.0, 31 - (time.monotonic() - began)))
            hold.let_go()

    supervise(directory, on_event=wait, log=print)
    assert outcome(directory) == (1, STEPS, "after epoch 1 of 60: limit of 0.5 minutes reached")
    result, last = read_json(directory.result_file), last_checkpoint(directory.checkpoints)
    assert 30 <= result["wall_seconds"] < 45
    assert result["attempts"] == 1
    assert last is not None
    assert step_of(last) in (STEPS + 2, STEPS + 3)
    assert read_progress(last).epoch == 1


def test_an_elastic_run_that_is_decided_is_not_placed_anew_for_more_workers(make_run) -> None:
    stop = StopConfig(target_accuracy=0.3)
    config = make_stopping("multi_worker", stop=stop, workers=2, min_workers=1, sum="exact")
    # Its profile would leave at a signal.
    directory, launcher = make_run(config, explain=ExplainConfig(), profile=True), Places(1)

    def hear(event: dict) -> None:
        if event["event"] == "decided":
            launcher.places = 2

    supervise(directory, on_event=hear, log=print, launcher=launcher)
    assert outcome(directory)[2].endswith("target accuracy 0.3 reached")
    assert launcher.places == 2
    assert read_workers(directory.attempts_file) == [1]
    warnings = [event["message"] for event in directory.read_events("warning")]
    assert warnings == ["where a step's time goes is not measured: the run ended with 1 of 2 workers"]
    assert not directory.probes_file.exists()
