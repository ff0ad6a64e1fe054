"""The explanation of a run directory: its figures, their names, and the file."""

import dataclasses
import json
from pathlib import Path

import pytest
from runs import make_config

from rampline.config import RunConfig
from rampline.explain.explanation import Explanation, explain_run
from rampline.files import write_json
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.training.timings import ReplicaProbes, StrategyProbes, Timings

NAMES = {
    *("step_ms_input", "step_ms_compute", "step_ms_contention", "step_ms_sync", "step_ms_other"),
    *("startup_seconds", "tracing_seconds", "steps_seconds", "evaluation_seconds", "checkpoint_seconds"),
    *("logging_seconds", "unexplained_seconds", "ceiling_images_per_second", "probe_slowdown"),
}


def timings(milliseconds: float) -> Timings:
    return Timings(milliseconds=(milliseconds,) * 3, steps=48)


MIRRORED = make_config("mirrored", replicas=2, virtual_devices=2)
PROBES = StrategyProbes(pipeline=timings(2), cached=timings(18), real=timings(20))
REPLICA = ReplicaProbes(alone=timings(10), half=timings(7), at_once=timings(14), processes=2, batch_size=14)


def make_directory(folder: Path, config: RunConfig, train_examples: int = 280) -> RunDirectory:
    """Of a run of 3 epochs, 10 steps each, as training leaves it."""
    directory = RunDirectory(folder / "run")
    directory.create(dataclasses.replace(config, epochs=3), RunIdentity(study="test", name="run", dataset=str(folder)))
    events = [{"event": "started", "time": 100.0, "startup_seconds": 6.0, "train_examples": train_examples}]
    for number, seconds in enumerate((1.5, 0.25, 0.5), start=1):
        metrics = {"epoch_seconds": seconds, "validation_seconds": 0.5}
        events.append({"event": "epoch", "time": 100.0 + 2 * number, "epoch": number, "metrics": metrics})
    directory.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    result = {"epochs": 3, "steps": 30, "wall_seconds": 10.5, "logging_seconds": 0.25}
    write_json(directory.result_file, result)
    PROBES.write(directory.probes_file)
    return directory


def test_two_replicas_are_explained_and_read_back_as_written(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, MIRRORED)
    REPLICA.write(directory.replica_file)
    assert ReplicaProbes.read(directory.replica_file) == REPLICA
    assert StrategyProbes.read(directory.probes_file) == PROBES
    explanation = explain_run(directory)
    # Twice 14 images in 14 ms.
    assert explanation.ceiling_images_per_second == pytest.approx(2000)
    # The middle of 0.25 and 0.5 s for 10 steps, against 20 ms.
    assert explanation.slowdown == pytest.approx(37.5 / 20)
    assert explanation.verdict.bound == "compute"
    # 20 = 2 + 4 + 4 + 10, of the last 2 * 7 / 10 - 1 = 0.4 fixed; 1.875 times that is the usual step, which was made 30
    # times; the first epoch took 1.5 - 0.375 s longer.
    expected = {
        **{"step_ms_input": 3.75, "step_ms_sync": 7.5, "step_ms_contention": 7.5, "step_ms_compute": 11.25},
        **{"step_ms_other": 7.5, "probe_slowdown": 1.875, "ceiling_images_per_second": 2000},
        **{"startup_seconds": 6, "tracing_seconds": 1.125, "steps_seconds": 1.125, "evaluation_seconds": 1.5},
        **{"checkpoint_seconds": 0, "logging_seconds": 0.25, "unexplained_seconds": 0.5},
        # All rounds were the same.
        **{f"step_ms_{part}_noise": 0 for part in ("input", "compute", "contention", "sync", "other")},
    }
    assert explanation.figures() == pytest.approx(expected)
    explanation.write(directory.explanation_file)
    assert Explanation.read(directory.explanation_file) == explanation


def test_probes_of_whole_batches_explain_epochs_that_end_with_a_smaller_one(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, MIRRORED, train_examples=9 * 28 + 14)
    REPLICA.write(directory.replica_file)
    explanation = explain_run(directory)
    # Of 20 ms, 8 do not depend on the batch, which has 0.95 of a whole one's examples on average.
    assert explanation.slowdown == pytest.approx(37.5 / (8 + 0.95 * 12))
    assert explanation.step.total == pytest.approx(37.5)
    assert explanation.step.sync == pytest.approx(4 * explanation.slowdown)


def test_without_one_replicas_work_there_is_no_ceiling(tmp_path: Path) -> None:
    explanation = explain_run(make_directory(tmp_path, MIRRORED))
    assert explanation.figures().keys() == NAMES | {"step_ms_input_noise"}
    assert explanation.ceiling_images_per_second is None
    assert (explanation.step.input, explanation.step.compute, explanation.step.sync) == (3.75, 33.75, 0)
    explanation.write(tmp_path / "explanation.json")
    assert Explanation.read(tmp_path / "explanation.json") == explanation


def test_one_replica_has_no_sync_and_its_own_ceiling(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_config("single"))
    dataclasses.replace(REPLICA, at_once=None, processes=1, batch_size=28).write(directory.replica_file)
    explanation = explain_run(directory)
    assert (explanation.step.sync, explanation.step.contention) == (0, 0)
    assert explanation.step.compute == pytest.approx(1.875 * 18 * 0.6)
    assert explanation.ceiling_images_per_second == pytest.approx(2800)


@pytest.mark.parametrize(
    "config, sync, ceiling",
    [
        # 18 - 10: what the machines cost each other is no replica's work.
        (make_config("multi_worker", workers=2), 8, 2800),
        # Two workers that take turns: 18 - 10 / 2.
        (make_config("parameter_server", workers=2, parameter_servers=1), 13, 2800),
        # One worker, whose variables are elsewhere.
        (make_config("parameter_server", workers=1, parameter_servers=1), 8, 1400),
    ],
)
def test_one_replica_on_this_machine_is_not_the_whole_run(
    tmp_path: Path, config: RunConfig, sync: float, ceiling: float
) -> None:
    directory = make_directory(tmp_path, config)
    dataclasses.replace(REPLICA, at_once=None, processes=1).write(directory.replica_file)
    explanation = explain_run(directory)
    assert explanation.slowdown == 1.875
    assert (explanation.step.sync, explanation.step.contention) == (1.875 * sync, 0)
    assert explanation.ceiling_images_per_second == pytest.approx(ceiling)


def test_the_only_epoch_holds_the_tracing_so_the_probed_step_counts(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_config("single"))
    events = directory.read_events()[:2]
    directory.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    write_json(directory.result_file, {"epochs": 1, "steps": 10, "wall_seconds": 9.0})
    explanation = explain_run(directory)
    assert (explanation.slowdown, explanation.step.total) == (1.0, 20.0)
    assert explanation.run.steps == pytest.approx(0.2)
    assert explanation.run.tracing == pytest.approx(1.3)
