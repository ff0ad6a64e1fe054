"""The parity check of a run directory: its processes, its result, and what it leaves behind."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Literal

import pytest
from faults import Places
from processes import processes_of, started_processes_of
from runs import MakeRun, make_config

from rampline.config import LearningRateConfig, ParityConfig, RunConfig
from rampline.errors import RunFailed
from rampline.jobs.exit_status import NO_MEMORY
from rampline.jobs.job import JobFailed
from rampline.parity.check import ParityResult, _with_batch, check_parity, parity_config, result_file

MODEL = "parity_models:with_random_parts"


def test_two_workers_with_random_parts_pass_once(make_run: MakeRun) -> None:
    directory, lines = make_run(make_config("multi_worker", model=MODEL, batch=27, workers=2)), []
    result = check_parity(directory, log=lines.append)
    assert (result.status, result.precision, result.replicas, result.global_batch_size) == ("pass", "float64", 2, 27)
    assert result.max_loss_diff is not None
    assert result.max_weight_diff is not None
    assert max(result.max_loss_diff, result.max_weight_diff) < 1e-12
    assert len(result.losses) == len(result.reference_losses) == 10
    assert {n.layer for n in result.neutralised} == {"BatchNormalization", "Dropout", "RandomFlip"}
    assert processes_of(directory.path) == []
    assert ParityResult.read(result_file(directory)) == result
    assert check_parity(directory, log=lines.append) == result
    assert len(lines) == 1, "a check that passed is not repeated"


@pytest.mark.long
def test_a_parameter_server_with_one_worker_matches(make_run: MakeRun) -> None:
    directory = make_run(make_config("parameter_server", model=MODEL, workers=1, parameter_servers=1))
    result = check_parity(directory, log=print)
    assert result.status == "pass"
    assert result.max_weight_diff is not None
    assert result.max_weight_diff < 1e-12
    assert result.mean_staleness is None
    assert processes_of(directory.path) == []


@pytest.mark.long
def test_staleness_of_two_workers_is_measured_in_steps(make_run: MakeRun) -> None:
    config = make_config("parameter_server", workers=2, parameter_servers=1)
    result = check_parity(make_run(dataclasses.replace(config, parity=ParityConfig(steps=20))), log=print)
    assert result.status == "not_applicable"
    assert "2 workers update asynchronously" in result.reason
    assert result.mean_staleness is not None
    assert result.max_staleness is not None
    assert 0 < result.mean_staleness <= result.max_staleness <= 20
    assert len(result.losses) == 20


@pytest.mark.long
def test_skipped_steps_of_two_workers_are_checked_in_their_precision(make_run: MakeRun) -> None:
    config = dataclasses.replace(make_config("multi_worker", model=MODEL, workers=2), precision="mixed_float16")
    directory = make_run(dataclasses.replace(config, parity=ParityConfig(steps=3)))
    result = check_parity(directory, log=print)
    assert (result.status, result.precision) == ("pass", "float64")
    assert "the skipping of a step that overflows: checked in mixed_float16" in result.notes


@pytest.mark.slow
@pytest.mark.long
def test_fit_in_mixed_precision_is_checked_in_float64_and_says_so(make_run: MakeRun) -> None:
    config = make_config("mirrored", replicas=2, virtual_devices=2)
    config = dataclasses.replace(config, engine="fit", precision="mixed_float16", parity=ParityConfig(steps=3))
    result = check_parity(make_run(config), log=print)
    assert (result.status, result.steps, result.first_step) == ("pass", 3, 4)
    assert result.notes == (
        "precision=mixed_float16: checked in float64",
        "the skipping of a step that overflows: checked in mixed_float16",
    )


def test_an_elastic_run_is_checked_with_the_workers_that_there_is_room_for(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, lines = Places(1), list[str]()
    monkeypatch.setattr("rampline.parity.check.launcher_of_jobs", lambda config: launcher)
    config = make_config("multi_worker", workers=2, min_workers=1)
    directory = make_run(dataclasses.replace(config, parity=ParityConfig(steps=1)))
    result = check_parity(directory, log=lines.append)
    assert (result.status, result.notes) == ("pass", ("checked with 1 of 2 workers",))
    assert check_parity(directory, log=lines.append) == result
    assert len(lines) == 1, "a check that passed is not repeated"
    launcher.places = 2

    def log(line: str) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):  # with another number of workers it is
        check_parity(directory, log=log)


def test_a_broken_model_names_the_role_and_its_log(make_run: MakeRun) -> None:
    directory = make_run(make_config("mirrored", model="json:dumps", replicas=2, virtual_devices=2))
    with pytest.raises(RunFailed, match=r"^parity check: chief 0 ended with status \d+: TypeError: .*chief-0\.log\)$"):
        check_parity(directory, log=print)
    assert not result_file(directory).exists()
    assert processes_of(directory.path) == []


def test_an_interrupt_leaves_no_role(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_run(make_config("multi_worker", workers=2))
    found: list[int] = []

    def interrupt(*_: object) -> None:
        found.extend(started_processes_of(directory.path, 2))
        raise KeyboardInterrupt

    monkeypatch.setattr("rampline.jobs.job.follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_parity(directory, log=print)
    assert len(found) == 2
    assert processes_of(directory.path) == []


def test_one_replica_is_not_applicable(make_run: MakeRun) -> None:
    result = check_parity(make_run(make_config("single")), log=print)
    assert (result.status, result.reason) == ("not_applicable", "one replica: there is nothing to compare")
    assert result.passed


@pytest.mark.long
def test_a_run_on_several_machines_is_checked_on_this_one(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"worker": ["10.1.2.3:2222", "10.1.2.4:2222"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    config = make_config("multi_worker", workers=2)
    result = check_parity(make_run(dataclasses.replace(config, parity=ParityConfig(steps=2))), log=print)
    assert (result.status, result.replicas) == ("pass", 2)
    assert result.notes == ("several machines: checked with 2 replicas on the processors of this one",)


@pytest.mark.parametrize(
    "model, how",
    [
        pytest.param("in_little_memory", "has no memory: |signal 6", marks=pytest.mark.long),
        ("killed_above_a_batch_of_16", "was ended by signal 9"),
    ],
)
def test_a_batch_that_memory_does_not_take_is_halved(make_run: MakeRun, model: str, how: str) -> None:
    config = make_config("mirrored", model=f"parity_models:{model}", batch=28, replicas=2, virtual_devices=2)
    directory, lines = make_run(dataclasses.replace(config, parity=ParityConfig(steps=1))), list[str]()
    result = check_parity(directory, log=lines.append)
    size = result.global_batch_size
    assert result.status == "pass"
    assert size in (14, 7)
    assert f"global batch 28: checked with {size}, which memory takes" in result.notes
    assert re.search(f"chief 0 ({how}).*: checking with a global batch of 14 instead of 28$", lines[1])
    assert processes_of(directory.path) == []


@pytest.mark.parametrize("accumulate", [2, pytest.param("auto", marks=pytest.mark.long)])
def test_a_batch_that_memory_takes_in_micro_batches_is_checked_in_them(
    make_run: MakeRun, accumulate: int | Literal["auto"]
) -> None:
    """A replica has 28 examples, and the one that it is compared with 56: there is memory for 14 at once."""
    config = make_config("mirrored", model="small_models:large", batch=56, replicas=2, virtual_devices=2)
    config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate=accumulate))
    result = check_parity(make_run(dataclasses.replace(config, parity=ParityConfig(steps=1))), log=print)
    assert (result.status, result.global_batch_size, result.notes) == ("pass", 56, ())


@pytest.mark.parametrize(
    "batch, accumulate, expected",
    [
        (128, "auto", [*[(128, parts) for parts in (1, 2, 4, 8, 16, 32, 64)], (64, 32), (32, 16), (16, 8), (8, 4)]),
        # More micro-batches than the share of a halved batch has examples.
        (5, 3, [(5, 3), (2, 1)]),
    ],
)
def test_what_no_memory_takes_is_not_applicable_in_as_many_micro_batches_as_a_share_has_examples(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, batch: int, accumulate: int | Literal["auto"], expected: list
) -> None:
    tried = list[tuple[int, object]]()

    def no_memory(_: object, config: RunConfig, *__: object) -> None:
        tried.append((config.batch.size, config.batch.accumulate))
        raise JobFailed("chief 0", "has no memory", Path("chief-0.log"), NO_MEMORY)

    monkeypatch.setattr("rampline.parity.check._run_roles", no_memory)
    config = make_config("mirrored", batch=batch, replicas=2, virtual_devices=2)
    config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate=accumulate))
    result = check_parity(make_run(config), log=print)
    reason = f"there is no memory for the check, in float64, with a global batch of {expected[-1][0]} either"
    assert (result.status, result.reason, tried) == ("not_applicable", reason, expected)


def test_a_smaller_batch_may_scale_the_peak_below_the_floor() -> None:
    rate = LearningRateConfig(schedule="ramp", peak=0.01, floor=0.01, scale_with="global_batch", base_batch_size=28)
    config = dataclasses.replace(make_config("mirrored", batch=28), learning_rate=rate)
    assert _with_batch(config, 28, 1).learning_rate == rate
    smaller = _with_batch(config, 14, 1)
    assert (smaller.peak_learning_rate, smaller.learning_rate.floor) == (0.005, 0.005)


def test_what_is_checked_keeps_the_training_and_drops_the_rest() -> None:
    config = make_config("mirrored", replicas=2, virtual_devices=2)
    other = dataclasses.replace(config, xla=True, precision="mixed_float16", checkpoint_every_steps=5)
    assert parity_config(other) == config
