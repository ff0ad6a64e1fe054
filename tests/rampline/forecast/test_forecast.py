"""Forecasts of made-up readings, their intervals, and what earlier ones do to these."""

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from executions import count_as_begun
from scipy import stats

from rampline.config import BatchConfig, ClusterConfig, RunConfig, to_dict
from rampline.config.run_config import Strategy
from rampline.devices import Devices
from rampline.explain.parts import RunParts, StepParts
from rampline.files import write_json
from rampline.forecast.forecast import (
    PRIOR,
    PRIOR_PER_DOUBLING,
    PRIOR_RUNS,
    Calibration,
    Forecast,
    faster,
    forecast_run,
)
from rampline.forecast.machine_types import MachineType
from rampline.forecast.reading import Reading
from rampline.record.home import Home
from rampline.record.provenance import environment
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.training.timings import Timings

IMAGES: Any = {"train_examples": 1000, "validation_examples": 100}


def timings(*milliseconds: float) -> tuple[Timings, ...]:
    return tuple(Timings(milliseconds=(ms, ms, ms), steps=30) for ms in milliseconds)


def reading(replicas: int, step: float, **others: object) -> Reading:
    """Batches of 16 and 32; the step is that of 32, and half of it for 16, with 1 ms more of a pipeline."""
    values = {
        "replicas": replicas,
        "batch_sizes": (16, 32),
        "real": timings(step / 2 + 1, step + 1),
        "cached": timings(step / 2, step),
        "update": timings(1.0)[0],
        "latency_ms": 0.0,
        "startup_seconds": 2.0,
        "tracing_seconds": 1.0,
        "evaluation_tracing_seconds": 0.5,
        "evaluation_images": (25, 50),
        "evaluation_seconds": (0.06, 0.1),
        "checkpoint_seconds": 0.05,
        "logging_seconds": 0.2,
        "gradient_bytes": 4_000_000,
    }
    return Reading(**{**values, **others})  # type: ignore[arg-type]


def mirrored(replicas: int, per_replica: int = 32) -> RunConfig:
    return RunConfig(
        epochs=2,
        strategy="mirrored",
        batch=BatchConfig(size=per_replica, per="replica"),
        cluster=ClusterConfig(replicas=replicas, virtual_devices=replicas),
    )


def make_forecast(images_per_second: float = 100.0, deviation: float = PRIOR, **others: object) -> Forecast:
    step = StepParts(input=1.0, compute=8.0, contention=0.0, sync=0.0, other=1.0)
    run = RunParts(startup=1, tracing=1, steps=18, evaluation=0, checkpoint=0, logging=0, unexplained=0)
    return Forecast(
        step=step,
        run=run,
        images_per_second=images_per_second,
        epochs=2,
        deviation=deviation,
        **others,  # type: ignore[arg-type]
    )


def test_a_run_that_was_read_takes_what_was_read() -> None:
    config = RunConfig(epochs=2, batch=BatchConfig(size=32))
    found = forecast_run(config, reading(1, 20.0), None, **IMAGES)
    # 31 batches of 32, and one of 8.
    epoch_seconds = 31 * 21e-3 + 6e-3
    assert found.epoch_seconds == pytest.approx(epoch_seconds)
    assert found.images_per_second == pytest.approx(1000 / epoch_seconds)
    assert found.step == StepParts(input=1.0, compute=20.0, contention=0.0, sync=0.0, other=0.0)
    assert found.wall_seconds == pytest.approx(2.0 + 1.0 + 2 * epoch_seconds + 2 * 0.18 + 0.5 + 2 * 0.05 + 0.2)
    assert found.bound == "compute"


def test_a_batch_that_the_images_do_not_fill_is_as_large_as_they_make_it() -> None:
    images = IMAGES | {"train_examples": 48}
    found = forecast_run(mirrored(2), reading(1, 20.0), reading(2, 20.0), **images)
    assert found.epoch_seconds == pytest.approx(16e-3)
    assert found.step.total == pytest.approx(16.0)


def test_half_of_the_epochs_between_checkpoints_are_saved_as_the_best() -> None:
    config = RunConfig(epochs=10, batch=BatchConfig(size=32), checkpoint_every_epochs=4)
    found = forecast_run(config, reading(1, 20.0), None, **IMAGES)
    # Epochs 4, 8 and 10, and half of the other 7.
    assert found.run.checkpoint == pytest.approx(6.5 * 0.05)


def test_checkpoints_inside_epochs_are_paid_too() -> None:
    config = RunConfig(epochs=2, batch=BatchConfig(size=32), checkpoint_every_steps=10)
    found = forecast_run(config, reading(1, 20.0), None, **IMAGES)
    assert found.run.checkpoint == pytest.approx((2 + 6) * 0.05)


def test_more_replicas_than_were_read_follow_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rampline.forecast.forecast.available_cores", lambda: 2)
    one, two = reading(1, 20.0), reading(2, 35.0, update=timings(6.0)[0])
    step = forecast_run(mirrored(4), one, two, **IMAGES).step
    # Two compute for 30 ms, four for 60; the sum of two takes 5 ms, that of four 10.
    assert (step.compute + step.other, step.contention, step.sync) == pytest.approx((20.0, 40.0, 10.0))
    assert step.input == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("strategy, startup", [("mirrored", 3.0 + 2 * 1.0), ("multi_worker", 2 * 3.0)])
def test_processes_start_side_by_side_and_replicas_of_one_in_turn(
    strategy: Strategy, startup: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rampline.forecast.forecast.available_cores", lambda: 2)
    cluster = mirrored(4).cluster if strategy == "mirrored" else ClusterConfig(workers=4)
    config = RunConfig(epochs=2, strategy=strategy, batch=BatchConfig(size=32), cluster=cluster)
    found = forecast_run(config, reading(1, 20.0), reading(2, 30.0, startup_seconds=3.0), **IMAGES)
    assert found.run.startup == pytest.approx(startup)


def test_a_smaller_batch_costs_its_share_and_the_fixed_cost() -> None:
    one = reading(1, 20.0, cached=timings(14.0, 20.0), real=timings(14.0, 20.0))
    step = forecast_run(RunConfig(batch=BatchConfig(size=32)), one, None, **IMAGES).step
    assert (step.other, step.compute) == pytest.approx((8.0, 12.0))


def test_the_noise_of_a_reading_is_not_taken_off_the_step_of_a_faster_machine() -> None:
    one = reading(1, 20.0, real=timings(9.5, 19.0))
    found = forecast_run(RunConfig(batch=BatchConfig(size=32)), one, None, **IMAGES, machine=MachineType(compute=100.0))
    assert (found.step.input, found.step.total) == (0.0, pytest.approx(0.2))


def test_a_described_machine_computes_faster_and_sends_over_its_link() -> None:
    machine = MachineType(devices=4, compute=10.0, link_gbit=1.0, link_latency_us=100.0, price_per_hour=3.0)
    found = forecast_run(mirrored(4), reading(1, 20.0), None, **IMAGES, machine=machine)
    assert found.step.compute == pytest.approx(2.0)
    assert found.step.sync == pytest.approx(2 * 3 * 0.1 + 2 * 3 / 4 * 4e6 * 8 / 1e9 * 1e3)
    assert found.bound == "sync"
    assert found.deviation > forecast_run(mirrored(4), reading(1, 20.0), reading(2, 20.0), **IMAGES).deviation


def test_every_worker_of_a_parameter_server_updates_also_where_one_alone_was_read() -> None:
    cluster = ClusterConfig(workers=4, parameter_servers=1)
    config = RunConfig(strategy="parameter_server", batch=BatchConfig(size=32), cluster=cluster)
    assert forecast_run(config, reading(1, 20.0), None, **IMAGES).step.total == pytest.approx(21.0 / 4)


@pytest.mark.parametrize(
    "replicas, batch, doublings", [(2, 32, 0), (4, 32, 1), (2, 16, 0), (2, 24, 0), (2, 128, 2), (2, 8, 1)]
)
def test_more_than_was_read_is_less_certain(replicas: int, batch: int, doublings: int) -> None:
    found = forecast_run(mirrored(replicas, batch), reading(1, 20.0), reading(2, 30.0), **IMAGES)
    assert found.deviation == pytest.approx(math.hypot(PRIOR, PRIOR_PER_DOUBLING * doublings))


def test_a_batch_that_the_images_do_not_fill_is_as_certain_as_what_they_make_it() -> None:
    images = IMAGES | {"train_examples": 48}
    found = forecast_run(mirrored(2, 512), reading(1, 20.0), reading(2, 30.0), **images)
    assert found.deviation == pytest.approx(PRIOR)


def test_several_replicas_of_which_one_was_read_are_uncertain() -> None:
    assert forecast_run(mirrored(2), reading(1, 20.0), None, **IMAGES).deviation > 3 * PRIOR


def test_rounds_that_differ_widen_the_interval() -> None:
    noisy = Timings(milliseconds=(20.0, 25.0, 30.0), steps=30)
    one = reading(1, 25.0, real=(*timings(12.0), noisy))
    found = [forecast_run(RunConfig(batch=BatchConfig(size=size)), one, None, **IMAGES) for size in (16, 32)]
    assert found[0].deviation == pytest.approx(PRIOR)
    assert found[1].deviation > 2 * PRIOR


def test_the_speedup_is_less_certain_than_either() -> None:
    fast, slow = (Calibration().applied(make_forecast(speed)) for speed in (200.0, 100.0))
    value, factor = faster(fast, slow)
    assert value == 2.0
    assert factor == pytest.approx(math.exp(math.sqrt(2) * math.log(fast.factor)))


def outcome(
    home: Home, number: int, speed: float, forecast: Forecast, speeds_after_first: int = 1, **result: object
) -> RunDirectory:
    directory = RunDirectory(home.runs / "s" / f"mine-{number}" / "run")
    count_as_begun(directory.path.parent)
    directory.create(RunConfig(), RunIdentity(study="s", name="run", dataset="/data"))
    forecast.write(directory.forecast_file)
    epochs = [{"images_per_second": speed / 7}, *[{"images_per_second": speed}] * speeds_after_first]
    lines = [json.dumps({"event": "epoch", "epoch": i + 1, "metrics": m}) + "\n" for i, m in enumerate(epochs)]
    directory.events_file.write_text("".join(lines))
    found = {"epochs": len(epochs), "attempts": 1, "wall_seconds": forecast.wall_seconds} | result
    directory.result_file.write_text(json.dumps(found))
    return directory


def test_earlier_errors_are_those_of_complete_runs_without_the_first_epoch(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    outcome(home, 1, 110.0, make_forecast())
    outcome(home, 2, 90.0, make_forecast(), speeds_after_first=0)
    directory = RunDirectory(home.runs / "s" / "mine-3" / "run")
    count_as_begun(directory.path.parent)
    directory.create(RunConfig(), RunIdentity(study="s", name="run", dataset="/data"))
    make_forecast().write(directory.forecast_file)
    assert Calibration.of(home).errors == [pytest.approx(math.log(1.1) / PRIOR)]


def test_the_first_epoch_after_a_restart_is_no_outcome(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    file = outcome(home, 1, 110.0, make_forecast(), speeds_after_first=0, attempts=2).events_file
    again = [
        {"event": "started", "first_epoch": 2},
        {"event": "epoch", "epoch": 2, "metrics": {"images_per_second": 20.0}},
        {"event": "epoch", "epoch": 3, "metrics": {"images_per_second": 110.0}},
    ]
    file.write_text(file.read_text() + "".join(json.dumps(event) + "\n" for event in again))
    assert Calibration.of(home).errors == [pytest.approx(math.log(1.1) / PRIOR)]


def test_wall_times_of_undisturbed_runs_make_the_interval_of_wall_time_and_cost(tmp_path: Path) -> None:
    home, forecast = Home(root=tmp_path), make_forecast()
    outcome(home, 0, 110.0, forecast, wall_seconds=21.0)
    outcome(home, 1, 110.0, forecast, wall_seconds=60.0, attempts=2)
    outcome(home, 2, 110.0, forecast, speeds_after_first=0)
    outcome(home, 20, 110.0, forecast, wall_seconds=60.0).rungs.mkdir()  # halving let it rest: it started several times
    found = Calibration.of(home)
    assert found.wall_errors == [pytest.approx(math.log(1.05) / PRIOR)]
    later = [Calibration().applied(forecast).wall_factor]
    for number in range(3, 12):
        outcome(home, number, 200.0, forecast, wall_seconds=20.2)
        later.append(Calibration.of(home).applied(forecast).wall_factor)
    assert later == sorted(later, reverse=True)
    assert later[-1] < 1 + 0.65 * (later[0] - 1)
    assert Calibration.of(home).applied(forecast).factor > 2


def test_forecasts_of_another_machine_say_nothing_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rampline.record.provenance.find_devices", lambda: Devices(gpus=("H200",)))
    home, own = Home(root=tmp_path), environment()
    # The GPUs that an attempt saw are those that its flow run was given.
    here = ({}, {"host": own["host"]}, own, own | {"gpus": "H200, H200"})
    others = ({"host": "laptop", "cpu cores": "2"}, own | {"cpu cores": "999"}, own | {"gpus": "none"})
    told = [{"environment": items} for items in (*others, *here)]
    # An elastic run that had not the workers of its settings has another speed.
    for number, attempt in enumerate([*told, {"workers": 1}, {"workers": 2}]):
        file = outcome(home, number, 110.0 + number, make_forecast()).attempts_file
        file.write_text(json.dumps({"event": "attempt", "number": 1} | attempt) + "\n")
    assert len(Calibration.of(home).errors) == len(here) + 1


def test_the_nodes_of_a_cluster_are_the_same_wherever_the_command_is(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    directory = outcome(home, 0, 110.0, make_forecast())
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(launcher="ray", workers=2))
    directory.config_file.write_text(json.dumps(to_dict(config)))
    attempt = {"event": "attempt", "number": 1, "environment": {"host": "Ray cluster 10.0.0.1"}}
    directory.attempts_file.write_text(json.dumps(attempt) + "\n")
    assert len(Calibration.of(home).errors) == 1


def test_good_forecasts_make_the_next_interval_narrower_and_bad_ones_wider() -> None:
    first = Calibration().applied(make_forecast()).factor
    assert first == pytest.approx(math.exp(PRIOR * stats.t.ppf(0.95, PRIOR_RUNS)))
    assert Calibration(errors=[0.1] * 10).applied(make_forecast()).factor < first
    assert Calibration(errors=[3.0] * 10).applied(make_forecast()).factor > first


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_ninety_of_a_hundred_outcomes_lie_in_the_interval_whatever_the_home_is_like(spread: float) -> None:
    """Forecasts whose errors are `spread` times what they claim: after 20 of them the intervals are right."""
    draw, inside, total = random.Random(3), 0, 0
    for _ in range(60):
        errors: list[float] = []
        for number in range(40):
            error = draw.gauss(0.0, spread)
            if number >= 20:
                factor = Calibration(errors=errors).applied(make_forecast()).factor
                inside += abs(error) * PRIOR <= math.log(factor)
                total += 1
            errors.append(error)
    assert 0.86 < inside / total < 0.97


def test_a_forecast_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = dataclasses.replace(make_forecast(), factor=1.5, wall_factor=1.25, source="run")
    found.write(tmp_path / "forecast.json")
    assert Forecast.read(tmp_path / "forecast.json") == found
    assert found.figures(None)["quoted_within"] == 0.25


def test_a_forecast_by_an_earlier_version_claims_no_interval(tmp_path: Path) -> None:
    written = dataclasses.asdict(make_forecast())
    for name in ("factor", "wall_factor"):
        del written[name]
    write_json(tmp_path / "forecast.json", written | {"scale": 1.5, "forecasts": 3, "wall_scale": 2.0})
    figures = Forecast.read(tmp_path / "forecast.json").figures(3.6)
    assert (figures["quoted_wall_seconds"], figures.get("quoted_within")) == (20.0, None)
