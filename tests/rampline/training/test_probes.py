"""Probes at the end of real runs: what they leave, and that the training is the same without them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import assert_bit_equal
from runs import MakeRun, make_config

from rampline.config import ExplainConfig, RunConfig
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory
from rampline.training.probes import LONGEST_ROUND_SECONDS, SHORTEST_ROUND_SECONDS, measure_in_turns
from rampline.training.timings import MOST_ROUNDS, ROUNDS, StrategyProbes

Train = Callable[..., RunDirectory]
# Batch normalisation and dropout: moving statistics and a random generator that a probe would move on.
MODEL = "small_models:with_all_state"
NOT_MEASURED = "where a step's time goes is not measured"


@pytest.fixture
def train(make_run: MakeRun) -> Train:
    """`train(config, **changes)` runs one epoch of it."""

    def run(config: RunConfig, **changes: object) -> RunDirectory:
        directory = make_run(config, **{"epochs": 1, "explain": ExplainConfig(), **changes})
        supervise(directory, on_event=lambda event: None, log=print)
        return directory

    return run


def steps_of_a_round(directory: RunDirectory) -> int:
    """Of each probe, after checking that all have as many figures as there are rounds."""
    probes = StrategyProbes.read(directory.probes_file)
    for timings in (probes.pipeline, probes.cached, probes.real):
        assert ROUNDS <= len(timings.milliseconds) <= MOST_ROUNDS
        assert min(timings.milliseconds) > 0
    assert probes.pipeline.median < probes.real.median
    return probes.cached.steps // len(probes.cached.milliseconds)


def lines_of_examples(directory: RunDirectory) -> dict[str, list[str]]:
    return {file.name: file.read_text().splitlines() for file in (directory.path / "examples").iterdir()}


def profiles(directory: RunDirectory) -> list[Path]:
    return list(directory.tensorboard.glob("plugins/profile/*/*.xplane.pb"))


def assert_wall_time_without_probes(directory: RunDirectory) -> None:
    """Start-up and training make the wall time; what comes after the last checkpoint does not."""
    events = {event["event"]: event for event in directory.read_events()}
    probes = StrategyProbes.read(directory.probes_file)
    measured = sum(
        sum(t.milliseconds) * t.steps / len(t.milliseconds) / 1000
        for t in (probes.pipeline, probes.cached, probes.real)
    )
    probing = events["finished"]["time"] - events["checkpoint"]["time"]
    assert probing > measured
    in_training = events["checkpoint"]["time"] - events["started"]["time"]
    wall_seconds = json.loads(directory.result_file.read_text())["wall_seconds"]
    assert wall_seconds == pytest.approx(events["started"]["startup_seconds"] + in_training, abs=probing / 2)


def test_our_loop_is_probed_and_trains_the_same_without(train: Train) -> None:
    config = make_config("single", model=MODEL)
    probed = train(config, log_examples=True)
    plain = train(config, log_examples=True, profile=True, explain=ExplainConfig(steps=0))
    assert steps_of_a_round(probed) % 8 == 0, "whole calls"
    assert_bit_equal(probed, plain)
    # 5 steps of 28 make the 120 examples; the probes' are not among them.
    (used,) = [json.loads(line)["examples"] for line in lines_of_examples(probed)["chief-0.jsonl"]]
    assert [len(step) for step in used] == [28, 28, 28, 28, 8]
    assert lines_of_examples(probed) == lines_of_examples(plain)
    assert_wall_time_without_probes(probed)
    # A profile can be had without probes.
    assert not plain.probes_file.exists()
    (profile,) = profiles(plain)
    assert profile.stat().st_size > 10_000
    assert profiles(probed) == []


@pytest.mark.slow
@pytest.mark.long
def test_fit_is_probed_and_trains_the_same_without(train: Train) -> None:
    config = dataclasses.replace(make_config("single", model=MODEL, batch=24), engine="fit")
    probed = train(config, profile=True)
    # 20 steps in 9 rounds, or more where they are quick.
    assert steps_of_a_round(probed) >= 3
    assert_bit_equal(probed, train(config, explain=ExplainConfig(steps=0)))
    assert len(profiles(probed)) == 1


@pytest.mark.slow
@pytest.mark.long
def test_two_mirrored_replicas(train: Train) -> None:
    config = make_config("mirrored", model=MODEL, replicas=2, virtual_devices=2)
    probed = train(config, log_examples=True)
    plain = train(config, log_examples=True, explain=ExplainConfig(steps=0))
    assert steps_of_a_round(probed) == 8
    assert_bit_equal(probed, plain)
    assert lines_of_examples(probed) == lines_of_examples(plain)


@pytest.mark.slow
@pytest.mark.long
def test_two_workers_agree_on_what_they_measured(train: Train) -> None:
    config = make_config("multi_worker", model=MODEL, workers=2)
    probed = train(config, log_examples=True, profile=True)
    plain = train(config, log_examples=True, explain=ExplainConfig(steps=0))
    assert steps_of_a_round(probed) == 8
    assert_bit_equal(probed, plain)
    assert lines_of_examples(probed).keys() == {"worker-0.jsonl", "worker-1.jsonl"}
    assert lines_of_examples(probed) == lines_of_examples(plain)
    # Of the chief alone.
    assert len(profiles(probed)) == 1


@pytest.mark.long
def test_a_parameter_server_with_one_worker(train: Train) -> None:
    # One worker: with two, no two trainings are the same.
    config = make_config("parameter_server", workers=1, parameter_servers=1)
    probed = train(config)
    # Whole calls of 8 steps: 4 of them for the worker, or as many as a round has room for.
    assert steps_of_a_round(probed) in (8, 16, 24, 32)
    plain = train(config, explain=ExplainConfig(steps=0))
    assert not plain.probes_file.exists()
    assert_bit_equal(probed, plain)


@pytest.mark.slow
@pytest.mark.long
def test_two_workers_of_a_parameter_server(train: Train) -> None:
    config = make_config("parameter_server", workers=2, parameter_servers=1)
    assert steps_of_a_round(train(config)) % 8 == 0


@pytest.mark.parametrize(
    "cluster",
    [
        {"strategy": "single"},
        pytest.param({"strategy": "multi_worker", "workers": 2}, marks=pytest.mark.long),
    ],
)
def test_probes_that_a_process_is_killed_in_are_not_tried_again(cluster: dict, train: Train) -> None:
    directory = train(make_config(model="small_models:killed_in_the_probes", **cluster))
    assert json.loads(directory.result_file.read_text())["attempts"] == 2
    (warning,) = directory.read_events("warning")
    assert warning["message"] == f"{NOT_MEASURED}: the probes ended an earlier attempt"


def test_probes_take_turns_in_whole_calls_and_slow_ones_make_fewer_steps() -> None:
    calls: list[tuple[str, int]] = []

    def make(name: str, seconds: list[float]) -> Callable[[int], float]:
        def probe(steps: int) -> float:
            calls.append((name, steps))
            return seconds.pop(0)

        return probe

    # The first call compiles and does not count. A round lasts 0.02 to 1.5 s; nine of those are four of 3 s.
    fast, slow = [0.001, 0.002, 0.004, 0.005], [1.0, 2.0, 3.0, 4.0]
    assert (SHORTEST_ROUND_SECONDS, LONGEST_ROUND_SECONDS, ROUNDS) == (0.02, 1.5, 9)
    probes = {"fast": make("fast", [9.0, 0.0011, *fast]), "slow": make("slow", [9.0, 3.0, *slow])}
    config = dataclasses.replace(make_config("single"), explain=ExplainConfig())
    found = measure_in_turns(probes, config, average=lambda seconds: seconds)
    assert calls == [("fast", 1)] * 2 + [("slow", 1)] * 2 + [("fast", 24), ("slow", 1)] * 4
    assert (found["fast"].milliseconds, found["fast"].steps) == ((1.0, 2.0, 4.0, 5.0), 4 * 24)
    assert (found["slow"].milliseconds, found["slow"].steps) == ((1000.0, 2000.0, 3000.0, 4000.0), 4)
    # Quick ones fill a second, with 21 rounds at most.
    quick = {"fast": make("fast", [9.0, 0.001, *[0.001] * 21])}
    assert len(measure_in_turns(quick, config, average=lambda s: s)["fast"].milliseconds) == MOST_ROUNDS
    # A round that has no room for three calls of 8 steps has two, not 21 steps.
    many = dataclasses.replace(config, explain=ExplainConfig(steps=200))
    found = measure_in_turns({"one": make("one", [9.0, *[0.07] * 10])}, many, average=lambda s: s)
    assert found["one"].steps == ROUNDS * 16
    # However slow they are, there are three rounds.
    found = measure_in_turns({"slow": make("slow", [9.0, 60.0, 1.0, 2.0, 3.0])}, config, average=lambda s: s)
    assert found["slow"].steps == 3
