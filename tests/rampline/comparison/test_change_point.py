"""Simulated nights: noise raises an alarm less than once in 100 nights, and a slowed training is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rampline.comparison.history import FALSE_ALARMS, Judgement, State, judge_each

NIGHTS = 100
FIGURES = 6  # two runs with accuracy, images/s and cost
SPREAD = 0.02  # standard deviation, of images/s as a share
Noise = Callable[[np.random.Generator, int], np.ndarray]


def drifting(random: np.random.Generator, nights: int) -> np.ndarray:
    """The machine's load of a night is half that of the night before, and heavy-tailed."""
    load = random.standard_t(4, nights)
    for night in range(1, nights):
        load[night] += 0.5 * load[night - 1]
    return load / math.sqrt(2 / (1 - 0.5**2))


NOISES: dict[str, Noise] = {
    "normal": lambda random, nights: random.normal(size=nights),
    "heavy-tailed": lambda random, nights: random.standard_t(3, nights) / math.sqrt(3),
    "skewed": lambda random, nights: -np.exp(0.8 * random.normal(size=nights)),
    "busy now and then": lambda random, nights: random.normal(size=nights) - 8.0 * (random.random(nights) < 0.05),
    "drifting": drifting,
}


def states(values: list[float], figures: int = FIGURES) -> list[State]:
    return [found.state for found in judge_each(values, figures)]


def alarms_per_night(noise: Noise, histories: int, figures: int) -> float:
    """Of nights with several figures each, none of which has changed."""
    random = np.random.default_rng(7)
    series = [SPREAD * noise(random, NIGHTS) for _ in range(histories * figures)]
    return sum(states(each.tolist(), figures).count(State.CHANGED) for each in series) / (histories * NIGHTS)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_raises_an_alarm_less_than_once_in_100_nights(noise: str) -> None:
    assert alarms_per_night(NOISES[noise], histories=10, figures=FIGURES) <= FALSE_ALARMS


@pytest.mark.long
@pytest.mark.parametrize("figures", [3, 24])
@pytest.mark.parametrize("noise", NOISES)
def test_noise_raises_no_more_alarms_with_few_or_many_figures(noise: str, figures: int) -> None:
    assert alarms_per_night(NOISES[noise], histories=100, figures=figures) <= FALSE_ALARMS


@pytest.mark.parametrize(("speed", "nights", "share"), [(0.6, 1, 0.9), (0.75, 3, 0.9)])
@pytest.mark.parametrize("noise", ["normal", "heavy-tailed", "drifting"])
def test_a_slowed_training_is_found_within_three_nights(noise: str, speed: float, nights: int, share: float) -> None:
    random, found, histories = np.random.default_rng(8), 0, 60
    for _ in range(histories):
        values = SPREAD * NOISES[noise](random, 20 + nights)
        values[20:] += math.log(speed)
        found += State.CHANGED in states(values.tolist())[20:]
    assert found >= share * histories


def judge_last(values: list[float]) -> Judgement:
    return list(judge_each(values, FIGURES))[-1]


def test_a_change_is_told_once_and_becomes_the_usual() -> None:
    before, after = [1.00, 1.01, 0.99, 1.00, 1.01], [0.50, 0.51, 0.50, 0.51, 0.50]
    changed = [State.CHANGED, State.STILL_CHANGED, State.STILL_CHANGED, State.USUAL, State.USUAL]
    assert states(before + after)[5:] == changed
    assert judge_last(before + after).usual == pytest.approx(np.mean(after[:4]))
    # And the way back is a change again.
    assert states(before + after + before)[10:12] == [State.CHANGED, State.STILL_CHANGED]


def test_a_single_night_is_told_and_left_out_of_the_history() -> None:
    values = [1.00, 1.01, 0.99, 1.00, 1.01, 0.30, 1.00]
    assert states(values)[5:] == [State.CHANGED, State.USUAL]
    assert judge_last(values).compared == 5


def test_a_small_change_that_stays_is_found_by_the_mean_of_three_nights() -> None:
    random = np.random.default_rng(9)
    before = (SPREAD * random.normal(size=30)).tolist()
    values = [*before, *(math.log(0.83) + SPREAD * random.normal(size=3)).tolist()]
    assert State.CHANGED not in states(values[:-1])
    found = judge_last(values)
    assert (found.state, found.is_mean, found.compared) == (State.CHANGED, True, 27)
    assert found.value == pytest.approx(np.mean(values[-3:]))
    assert not found.low < found.value < found.high


def test_few_nights_say_nothing_or_find_what_is_large() -> None:
    assert states([1.0, 5.0, 9.0]) == [State.TOO_FEW] * 3
    assert states([1.00, 1.02, 0.99, 0.90])[-1] is State.USUAL
    assert states([1.00, 1.02, 0.99, -1.0])[-1] is State.CHANGED
    found = judge_last([1.0])
    assert (found.compared, found.low, found.high, math.isnan(found.usual)) == (0, -math.inf, math.inf, True)


def test_equal_accuracies_may_differ_by_an_image() -> None:
    # Of 360 images.
    assert states([350 / 360] * 8 + [349 / 360])[-1] is State.USUAL
    assert states([350 / 360] * 8 + [340 / 360])[-1] is State.CHANGED
