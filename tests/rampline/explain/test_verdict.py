"""The verdict: one sentence for each bound, with what would help and by how much at most."""

import dataclasses

import pytest
from runs import make_config

from rampline.config import RunConfig
from rampline.explain.explanation import judge
from rampline.explain.parts import StepParts
from rampline.training.timings import StrategyProbes, Timings

TIMES = "\N{MULTIPLICATION SIGN}"
NOTHING = {"input": 0.0, "compute": 0.0, "contention": 0.0, "sync": 0.0, "other": 0.0}


def parts(**milliseconds: float) -> StepParts:
    return StepParts(**NOTHING | milliseconds)


def probed(real: float = 10, cached: float = 10, pipeline: float = 1) -> StrategyProbes:
    of = {"pipeline": pipeline, "cached": cached, "real": real}
    return StrategyProbes(**{kind: Timings(milliseconds=(value,) * 3, steps=48) for kind, value in of.items()})


def with_data(config: RunConfig, **changes: str | int) -> RunConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))


MIRRORED = make_config("mirrored", replicas=2, virtual_devices=2)
SERVERS = make_config("parameter_server", workers=2, parameter_servers=1)


@pytest.mark.parametrize(
    "config, found, bound, share, gain, sentence",
    [
        (
            MIRRORED,
            parts(compute=6, sync=2, input=2),
            "compute",
            0.6,
            2.5,
            "compute-bound: 60 % of each 10.0 ms step is the network's own work on its examples; "
            "a faster device or a lower precision is what is left",
        ),
        (
            MIRRORED,
            parts(compute=100, contention=300, sync=100),
            "contention",
            0.6,
            2.5,
            "contention-bound: 60 % of each 500 ms step is lost because 2 replicas share processors and memory here; "
            f"devices of their own would give at most 2.5{TIMES}",
        ),
        (
            MIRRORED,
            parts(compute=0.25, sync=0.75),
            "sync",
            0.75,
            4.0,
            "sync-bound: 75 % of each 1.0 ms step goes into the all-reduce between the replicas; "
            f"a larger batch per replica or a faster network would give at most 4.0{TIMES}",
        ),
        (
            SERVERS,
            parts(compute=1000, sync=1500, other=500),
            "sync",
            0.5,
            2.0,
            "sync-bound: 50 % of each 3,000 ms step goes into reading and updating the variables on the parameter "
            f"servers; a larger batch per replica or a faster network would give at most 2.0{TIMES}",
        ),
        (
            MIRRORED,
            parts(compute=2, other=8),
            "overhead",
            0.8,
            5.0,
            "overhead-bound: 80 % of each 10.0 ms step is a fixed cost that does not shrink with the batch (launching "
            f"operations, the update); a larger batch would give at most 5.0{TIMES}",
        ),
        (
            MIRRORED,
            parts(input=6, compute=4),
            "input",
            0.6,
            2.5,
            "input-bound: 60 % of each 10.0 ms step waits for the input pipeline, which needs 1.0 ms for a batch "
            f"alone; a faster pipeline would give at most 2.5{TIMES}",
        ),
    ],
)
def test_each_bound_has_its_sentence(
    config: RunConfig, found: StepParts, bound: str, share: float, gain: float, sentence: str
) -> None:
    verdict = judge(config, found, probed())
    assert (verdict.bound, verdict.share, verdict.gain) == (bound, pytest.approx(share), pytest.approx(gain))
    assert verdict.sentence == sentence


def test_prefetching_gives_what_the_slower_of_pipeline_and_step_allows():
    # 16 ms of which the pipeline is 10 and the step 6: side by side the pipeline decides, 16 / 10.
    config, found = with_data(MIRRORED, prefetch="off", cache="none"), parts(input=10, compute=6)
    verdict = judge(config, found, probed(real=16, cached=6, pipeline=10))
    assert verdict.gain == pytest.approx(1.6)
    assert verdict.sentence.endswith(
        f"needs 10.0 ms for a batch alone; data.prefetch=auto would give at most 1.6{TIMES}"
    )


@pytest.mark.parametrize(
    "data, pipeline, remedy",
    [
        # Working ahead of 1 ms of step saves little: 16 / 15 is below 1.15.
        ({"prefetch": "off", "cache": "none"}, 15, "data.cache=memory"),
        ({"prefetch": "off", "cache": "memory"}, 15, "a faster pipeline"),
        # It works ahead already.
        ({"prefetch": "auto", "cache": "disk"}, 8, "data.cache=memory"),
        ({"prefetch": 2, "cache": "memory"}, 8, "a faster pipeline"),
    ],
)
def test_prefetching_is_not_offered_where_it_does_not_help(
    data: dict[str, str | int], pipeline: float, remedy: str
) -> None:
    verdict = judge(with_data(MIRRORED, **data), parts(input=12, compute=4), probed(16, 4, pipeline))
    assert verdict.gain == 4
    assert verdict.sentence.endswith(f"; {remedy} would give at most 4.0{TIMES}")


@pytest.mark.parametrize(
    "engine, steps_per_call, remedy",
    [
        ("loop", 1, "steps_per_call=auto or a larger batch would"),
        ("loop", 8, "; a larger batch would"),
        ("fit", 1, "; a larger batch would"),
    ],
)
def test_many_steps_in_one_call_are_offered_to_our_loop(engine: str, steps_per_call: int, remedy: str) -> None:
    config = dataclasses.replace(make_config("single"), engine=engine, steps_per_call=steps_per_call)
    assert remedy in judge(config, parts(compute=1, other=3), probed()).sentence


@pytest.mark.parametrize("compute", [0, 0.02])
def test_what_a_step_would_gain_that_is_all_input_is_not_known(compute: float) -> None:
    verdict = judge(MIRRORED, parts(input=3, compute=compute), probed())
    assert verdict.gain == pytest.approx(100)
    assert verdict.sentence.endswith(
        "; a faster pipeline would give more than can be measured: hardly anything else is left of the step"
    )


def test_parts_that_are_not_told_apart_from_noise_are_named() -> None:
    found = parts(compute=4, contention=3, sync=2, input=1)
    one = judge(MIRRORED, found, probed(), {"other": 0.5}).sentence
    assert one.endswith("; next comes sharing the hardware with 30 %; the fixed cost is not told apart from noise")
    # Contention may hold the all-reduce: it is not the second largest part for certain.
    three = judge(MIRRORED, parts(compute=8, contention=3, sync=2, input=4), probed(), {"contention": 3, "sync": 3})
    assert three.sentence.endswith(
        "; next comes the input with 24 %; sharing the hardware and keeping the replicas in step are not told apart "
        "from noise"
    )


def test_a_part_has_no_more_of_the_step_than_the_others_leave() -> None:
    # Five replicas whose contention was told too large, and sync too small.
    found = parts(compute=518, other=75, input=179, contention=2835, sync=-1615)
    verdict = judge(MIRRORED, found, probed())
    assert verdict.share == pytest.approx(1 - (518 + 75 + 179) / 1992)
    assert verdict.gain == pytest.approx(1992 / (518 + 75 + 179))
    assert verdict.sentence.startswith("contention-bound: 61 % of each 1,992 ms step is lost")
    assert verdict.sentence.endswith(f"would give at most 2.6{TIMES}")


def test_what_contention_is_told_too_large_is_no_part_of_another_bound() -> None:
    verdict = judge(MIRRORED, parts(compute=10, contention=9, sync=-8), probed())
    assert (verdict.bound, verdict.share) == ("compute", pytest.approx(10 / 11))


def test_two_parts_that_are_not_told_apart_are_no_more_than_the_step() -> None:
    found = parts(compute=1, sync=10.5, input=-1.5)
    sentence = judge(MIRRORED, found, probed(), {"compute": 8.0, "sync": 8.0}).sentence
    assert sentence.startswith("sync or compute, not told apart: of each 10.0 ms step, 90 % goes into the all-reduce")
    assert "and 10 % is the network's own work" in sentence


def test_two_parts_that_are_not_told_apart_are_both_the_cause() -> None:
    found = parts(input=5, compute=4, sync=1)
    assert judge(MIRRORED, found, probed(), {"input": 0.5, "compute": 0.5}).bound == "input"
    verdict = judge(MIRRORED, found, probed(), {"input": 0.8, "compute": 0.7})
    assert (verdict.bound, verdict.share, verdict.gain) == ("input or compute", 0.5, 2)
    assert verdict.sentence == (
        "input or compute, not told apart: of each 10.0 ms step, 50 % waits for the input pipeline, which needs 1.0 ms "
        "for a batch alone, and 40 % is the network's own work on its examples; a faster pipeline would give at most "
        f"2.0{TIMES}; a faster device or a lower precision is what is left"
    )


def test_a_part_below_half_of_the_step_is_not_all_that_is_said() -> None:
    sentence = judge(MIRRORED, parts(compute=4, contention=1, sync=2, other=3), probed()).sentence
    assert sentence.startswith("compute-bound: 40 % of each 10.0 ms step")
    assert sentence.endswith("; next comes the fixed cost with 30 %")


def test_a_part_that_is_not_there_does_not_come_next() -> None:
    noise = {"input": 1.0, "other": 1.5}
    sentence = judge(MIRRORED, parts(compute=4, other=1, input=0.5, sync=-1), probed(), noise).sentence
    assert "next comes" not in sentence
