"""Parts of a step and of a run, from figures whose sums are worked out by hand."""

import dataclasses

import pytest

from rampline.explain.parts import (
    RunParts,
    StepParts,
    noise_of_parts,
    run_parts,
    steady_epochs,
    step_parts,
)
from rampline.training.timings import ReplicaProbes, StrategyProbes, Timings, mean_timings


def timings(*milliseconds: float) -> Timings:
    return Timings(milliseconds=milliseconds, steps=3 * 16)


def probed(real: float, cached: float, pipeline: float = 1.0) -> StrategyProbes:
    """Each with a median apart from its mean."""
    of = [timings(value, value * 9, value / 2) for value in (pipeline, cached, real)]
    return StrategyProbes(pipeline=of[0], cached=of[1], real=of[2])


def replica(alone: float, half: float | None, at_once: float | None = None, processes: int = 1) -> ReplicaProbes:
    return ReplicaProbes(
        alone=timings(alone, alone, alone),
        half=None if half is None else timings(half, half, half),
        at_once=None if at_once is None else timings(at_once, at_once, at_once),
        processes=processes,
        batch_size=16,
    )


def test_one_replica_is_its_own_cached_step():
    # 20 - 16 = 4 of input; half the batch takes 6 of 10 ms: 2 * 6 / 10 - 1 = 0.2 of the 16 ms do not depend on it.
    parts = step_parts(probed(20, 16), replica(10, 6), is_alone=True)
    expected = {"input": 4, "compute": 12.8, "contention": 0, "sync": 0, "other": 3.2}
    assert dataclasses.asdict(parts) == pytest.approx(expected)
    assert parts.total == pytest.approx(20)


def test_replicas_lose_time_to_each_other_and_to_the_all_reduce():
    # R 20, B 18, E 13, A 10, H 7: 2 of input, 5 of sync, 3 of contention, 2 * 7 / 10 - 1 = 0.4 of A is fixed.
    parts = step_parts(probed(20, 18), replica(10, 7, at_once=13, processes=2))
    expected = {"input": 2, "compute": 6, "contention": 3, "sync": 5, "other": 4}
    assert dataclasses.asdict(parts) == pytest.approx(expected)


def test_one_replica_on_each_of_two_machines_has_its_all_reduce():
    # Nothing shares the hardware: what B takes longer than A went between the machines.
    parts = step_parts(probed(20, 18), replica(10, 5))
    assert parts == StepParts(input=2, compute=10, contention=0, sync=8, other=0)


def test_parameter_server_workers_take_turns():
    # Two workers: A, H and E are divided by 2, to 12, 9 and 16; of 12 ms 2 * 18 / 24 - 1 = 0.5 are fixed.
    parts = step_parts(probed(25, 22), replica(24, 18, at_once=32, processes=2), updates_at_once=2)
    assert parts == StepParts(input=3, compute=6, contention=4, sync=6, other=6)


@pytest.mark.parametrize(
    "strategy, found, expected",
    [
        # The cached step was slower than the real one.
        (probed(20, 21), replica(10, 5, 15, 2), StepParts(input=-1, compute=10, contention=5, sync=6, other=0)),
        # As many at once were slower than the strategy.
        (probed(20, 18), replica(10, 5, 30, 2), StepParts(input=2, compute=10, contention=20, sync=-12, other=0)),
        # One alone was slower than the strategy, and than as many at once.
        (probed(20, 18), replica(40, 20, 30, 2), StepParts(input=2, compute=40, contention=-10, sync=-12, other=0)),
        # Half the batch was slower than all of it.
        (probed(20, 18), replica(10, 11, 15, 2), StepParts(input=2, compute=-2, contention=5, sync=3, other=12)),
        # Half the batch took less than half.
        (probed(20, 18), replica(10, 4, 15, 2), StepParts(input=2, compute=12, contention=5, sync=3, other=-2)),
        # A batch of one has no half.
        (probed(20, 18), replica(10, None, 15, 2), StepParts(input=2, compute=10, contention=5, sync=3, other=0)),
        # One replica's work was not measured.
        (probed(20, 18), None, StepParts(input=2, compute=18, contention=0, sync=0, other=0)),
    ],
)
def test_nothing_is_cut_off_and_parts_add_up(
    strategy: StrategyProbes, found: ReplicaProbes | None, expected: StepParts
) -> None:
    parts = step_parts(strategy, found)
    assert dataclasses.asdict(parts) == pytest.approx(dataclasses.asdict(expected))
    assert parts.total == pytest.approx(20)


def steady(real: float, cached: float) -> StrategyProbes:
    """The same in every round."""
    return StrategyProbes(pipeline=timings(1, 1, 1), cached=timings(*(cached,) * 3), real=timings(*(real,) * 3))


def test_the_noise_of_a_part_is_half_of_what_it_ranges_over():
    probes = StrategyProbes(pipeline=timings(1, 1, 1), cached=timings(18, 16, 18), real=timings(19, 21, 19))
    found = dataclasses.replace(replica(10, 7, at_once=12, processes=2), at_once=timings(12, 24, 10))
    # R - B in the rounds: 1, 5, 1. B and E range over 2 and 14 ms: hypot(1, 7).
    expected = {"input": 2, "sync": 50**0.5, "contention": 7, "other": 0, "compute": 0}
    assert noise_of_parts(probes, found) == pytest.approx(expected)
    # 2 H / A - 1 of the rounds: 0.2, 1.0, 0.4; of the 18 ms of the cached step.
    found = dataclasses.replace(found, alone=timings(10, 6, 20), half=timings(6, 6, 14), at_once=None)
    assert noise_of_parts(probes, found, is_alone=True) == pytest.approx({"input": 2, "other": 7.2, "compute": 7.2})


def test_of_nine_rounds_the_least_and_the_greatest_are_no_noise():
    probes = StrategyProbes(
        pipeline=timings(1), cached=timings(*(10,) * 9), real=timings(12, 90, 13, 12, 11, 12, 10, 12, 12)
    )
    assert noise_of_parts(probes, None) == pytest.approx({"input": 1})
    # Of 21 rounds the median lies between the sixth and the sixteenth, with a confidence of 97 %.
    of_21 = StrategyProbes(pipeline=timings(1), cached=timings(*(10,) * 21), real=timings(*range(11, 32)))
    assert noise_of_parts(of_21, None) == pytest.approx({"input": 5})


def test_what_was_not_measured_has_no_noise():
    assert noise_of_parts(steady(20, 18), None) == {"input": 0}
    # Nothing shares the hardware where there is one replica on each machine.
    assert set(noise_of_parts(steady(20, 18), replica(10, 7))) == {"input", "sync", "other", "compute"}


def test_noise_of_parameter_servers_is_that_of_a_worker_s_turn():
    found = dataclasses.replace(replica(40, 16, at_once=30, processes=2), at_once=timings(28, 30, 36))
    noise = noise_of_parts(steady(20, 18), found, updates_at_once=2)
    assert noise == pytest.approx({"input": 0, "contention": 2, "sync": 2, "other": 0, "compute": 0})


def test_the_fixed_share_is_that_of_the_usual_round():
    # 2 H / A - 1 of the rounds: 0.2, 1.0, 0.4. The medians of both, 6 and 10, would say 0.2.
    found = ReplicaProbes(alone=timings(10, 6, 20), half=timings(6, 6, 14), at_once=None, processes=1, batch_size=16)
    assert step_parts(steady(20, 18), found).other == pytest.approx(0.4 * 10)


def test_the_mean_of_processes_is_taken_round_by_round():
    parts = [Timings(milliseconds=(1.0, 2.0, 30.0), steps=48), Timings(milliseconds=(3.0, 6.0, 10.0), steps=48)]
    mean = mean_timings(parts)
    assert mean == Timings(milliseconds=(2.0, 4.0, 20.0), steps=48)
    assert mean.median == 4.0


def started(time: float, *, startup: float, first_epoch: int = 1) -> dict:
    return {"event": "started", "time": time, "startup_seconds": startup, "first_epoch": first_epoch}


def epoch(number: int, time: float, seconds: float, validation: float) -> dict:
    metrics = {"epoch_seconds": seconds, "validation_seconds": validation}
    return {"event": "epoch", "time": time, "epoch": number, "metrics": metrics}


def saved(seconds: float) -> dict:
    return {"event": "checkpoint", "time": 0.0, "seconds": seconds}


def test_a_whole_run_adds_up_to_its_wall_time():
    events = [
        started(100, startup=6),
        epoch(1, 109.5, 7, 2.5),
        saved(0.5),
        epoch(2, 115, 4, 1),
        saved(0.25),
        epoch(3, 121, 5, 1),
        saved(0.25),
    ]
    result = {"epochs": 3, "steps": 60, "wall_seconds": 28.0, "logging_seconds": 0.125}
    parts = run_parts(events, result, step_milliseconds=200)
    # 60 steps of 0.2 s; the first epoch took 7 - 4.5 s longer than the others' middle, and began at once.
    assert parts == RunParts(
        startup=6, tracing=2.5, steps=12, evaluation=4.5, checkpoint=1, logging=0.125, unexplained=1.875
    )
    assert parts.total == 28


def test_a_run_that_was_slower_than_its_usual_step_is_unexplained_and_a_faster_one_below_zero():
    events, result = [started(100, startup=6), epoch(1, 106, 5, 1)], {"epochs": 1, "steps": 20, "wall_seconds": 12.0}
    # 20 steps of 0.3 s are 6 s: the epoch itself took 5.
    assert run_parts(events, result, step_milliseconds=300).unexplained == pytest.approx(-1)
    later = [*events, epoch(2, 112, 5, 1)]
    result |= {"epochs": 2, "steps": 40, "wall_seconds": 18.0}
    # 40 steps of 0.1 s are 4 s of the 10 that the epochs took.
    assert run_parts(later, result, step_milliseconds=100).unexplained == pytest.approx(6)


def test_model_fit_builds_its_functions_before_the_first_step():
    # 9 s from the end of the start-up to the end of validation, of which 3 are the epoch's and 1 is validation.
    events = [started(100, startup=6), epoch(1, 109, 3, 1), epoch(2, 113, 3, 1)]
    parts = run_parts(events, {"epochs": 2, "steps": 10, "wall_seconds": 19.0}, step_milliseconds=600)
    assert parts == RunParts(startup=6, tracing=5, steps=6, evaluation=2, checkpoint=0, logging=0, unexplained=0)


def test_checkpoints_within_the_first_epoch_are_no_tracing():
    events = [started(100, startup=6), saved(2), saved(2), epoch(1, 113, 3, 1), epoch(2, 117, 3, 1)]
    parts = run_parts(events, {"epochs": 2, "steps": 10, "wall_seconds": 23.0}, step_milliseconds=600)
    assert parts == RunParts(startup=6, tracing=5, steps=6, evaluation=2, checkpoint=4, logging=0, unexplained=0)


def test_a_clock_that_is_set_is_no_tracing():
    # The same, while the clock of the wall is put forward by an hour.
    events = [started(100, startup=6), epoch(1, 3709, 3, 1), epoch(2, 3713, 3, 1)]
    events[0]["monotonic"], events[1]["monotonic"] = 50.0, 59.0
    assert run_parts(events, {"epochs": 2, "steps": 10, "wall_seconds": 19.0}, step_milliseconds=600).tracing == 5


def test_a_resumed_run_starts_twice_and_what_was_lost_is_unexplained():
    # Killed in the middle of the second epoch, which the next attempt begins again: 12 s of nobody.
    events = [
        started(100, startup=6),
        epoch(1, 105, 4, 1),
        saved(0.5),
        started(120, startup=5, first_epoch=2),
        epoch(2, 125, 4, 1),
        saved(0.5),
    ]
    result = {"epochs": 2, "steps": 40, "wall_seconds": 30.0, "logging_seconds": 0.0}
    parts = run_parts(events, result, step_milliseconds=100)
    assert parts == RunParts(startup=11, tracing=0, steps=4, evaluation=2, checkpoint=1, logging=0, unexplained=12)


def test_the_first_epoch_of_each_attempt_holds_tracing():
    # Killed in the second of three epochs: it took 6 s longer than the third, the first one 4 s.
    events = [
        started(100, startup=6),
        epoch(1, 108, 7, 1),
        started(120, startup=5, first_epoch=2),
        epoch(2, 130, 9, 1),
        epoch(3, 134, 3, 1),
    ]
    parts = run_parts(events, {"epochs": 3, "steps": 30, "wall_seconds": 46.0}, step_milliseconds=300)
    assert (parts.tracing, parts.steps, parts.unexplained) == (10, 9, 13)
    assert [metrics["epoch_seconds"] for metrics in steady_epochs(events)] == [3]
    assert [metrics["epoch_seconds"] for metrics in steady_epochs(events[:4])] == [9]
    # Damage to its checkpoint led a later attempt back to the first epoch: from there on all are made anew.
    back = [*events[:4], started(140, startup=5, first_epoch=1), epoch(1, 150, 8, 1), epoch(2, 154, 3, 1)]
    assert [metrics["epoch_seconds"] for metrics in steady_epochs(back)] == [3]


def test_epochs_that_were_lost_before_a_run_was_stopped_count_for_nothing():
    # The second attempt went back to the end of epoch 2, and its time was over then.
    events = [started(100, startup=6), *(epoch(number, 100 + 5 * number, 4, 1) for number in (1, 2, 3, 4))]
    events.append(started(130, startup=5, first_epoch=3))
    assert len(steady_epochs(events)) == 1
    assert run_parts(events, {"epochs": 2, "steps": 40, "wall_seconds": 40.0}, step_milliseconds=100).evaluation == 2


def test_an_attempt_that_was_lost_before_the_first_epoch_is_no_tracing():
    events = [started(100, startup=6), started(150, startup=5), epoch(1, 156, 4, 1), epoch(2, 161, 4, 1)]
    parts = run_parts(events, {"epochs": 2, "steps": 40, "wall_seconds": 70.0}, step_milliseconds=200)
    # From 150 to 156 less 5; the 50 s before are lost work.
    assert parts == RunParts(startup=11, tracing=1, steps=8, evaluation=2, checkpoint=0, logging=0, unexplained=48)


def test_an_epoch_that_was_made_again_counts_once():
    # After damage to the checkpoint: epoch 2 is there twice, the later one counts.
    events = [
        started(100, startup=6),
        epoch(1, 105, 4, 1),
        epoch(2, 111, 5, 1),
        started(120, startup=5, first_epoch=2),
        epoch(2, 125, 4, 1),
    ]
    result = {"epochs": 2, "steps": 40, "wall_seconds": 40.0}
    parts = run_parts(events, result, step_milliseconds=200)
    assert (parts.evaluation, parts.tracing, parts.steps) == (2, 0, 8)
    assert parts.total == 40
