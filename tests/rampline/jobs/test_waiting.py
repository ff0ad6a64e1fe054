"""Waiting for a condition, and no longer than one is told to."""

import itertools
import time

from rampline.jobs.waiting import wait_until


def test_it_ends_as_soon_as_the_condition_holds() -> None:
    asked = itertools.count(1)
    assert wait_until(lambda: next(asked) == 3, 60, every=0.01)
    assert next(asked) == 4


def test_what_never_holds_is_waited_for_as_long_as_told() -> None:
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.2, every=0.01)
    assert 0.2 <= time.monotonic() - began < 5


def test_without_time_to_wait_it_is_asked_once() -> None:
    assert wait_until(lambda: True, 0)
    assert not wait_until(lambda: False, 0)
