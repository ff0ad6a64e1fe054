"""A run that rests at rungs and goes on from them, with every strategy and both engines."""

import dataclasses
from pathlib import Path

import pytest
from faults import assert_bit_equal
from role_functions import RunRoles, train_whole
from runs import make_config

from rampline.config import RunConfig
from rampline.files import read_json
from rampline.record.run_directory import Goal, RunDirectory

LONG = pytest.mark.long
TWO = {"replicas": 2, "virtual_devices": 2}
ENGINES = [
    pytest.param("single", "loop", {}, id="loop"),
    pytest.param("single", "fit", {}, id="fit", marks=LONG),
    pytest.param("mirrored", "loop", TWO, id="mirrored", marks=LONG),
    pytest.param("mirrored", "fit", TWO, id="mirrored-fit", marks=LONG),
    pytest.param("multi_worker", "loop", {"workers": 2}, id="multi_worker", marks=LONG),
    pytest.param("parameter_server", "loop", {"workers": 2, "parameter_servers": 1}, id="parameter_server", marks=LONG),
]
# What a clock has measured.
MEASURED = {"wall_seconds", "train_seconds", "logging_seconds", "metrics", "attempts"}


def make_schedule(config: RunConfig) -> RunConfig:
    """One that ends with the last epoch."""
    rate = dataclasses.replace(config.learning_rate, schedule="cosine", ramp_epochs=1.0)
    return dataclasses.replace(config, epochs=4, learning_rate=rate)


@pytest.mark.parametrize(("strategy", "engine", "cluster"), ENGINES)
@pytest.mark.long
def test_a_run_that_has_rested_ends_with_the_bits_of_one_that_has_not(
    strategy: str, engine: str, cluster: dict, run_roles: RunRoles, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        make_schedule(make_config(strategy, model="small_models:with_all_state", **cluster)), engine=engine
    )
    straight, halved = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "halved")
    run_roles(train_whole, config, straight.path)
    for epoch in (1, 3):
        Goal(epoch=epoch).write(halved.goal_file)
        assert not halved.is_at_goal
        run_roles(train_whole, config, halved.path)
        assert (halved.is_at_goal, halved.is_complete) == (True, False)
        assert read_json(halved.rung_file(epoch))["epochs"] == epoch
    assert [event["epoch"] for event in halved.read_events("rested")] == [1, 3]
    Goal(epoch=4).write(halved.goal_file)
    run_roles(train_whole, config, halved.path)
    assert [event["epoch"] for event in halved.read_events("epoch")] == [1, 2, 3, 4]
    ours, theirs = (read_json(directory.result_file) for directory in (halved, straight))
    if strategy != "parameter_server":
        assert_bit_equal(halved, straight)
        assert {**ours, **dict.fromkeys(MEASURED)} == {**theirs, **dict.fromkeys(MEASURED)}
    assert (ours["epochs"], ours["steps"], ours["stopped"]) == (4, theirs["steps"], None)
