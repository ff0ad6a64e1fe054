"""Time and memory of the trials."""

from rampline.jobs.memory import available_bytes, lacking_bytes, peak_bytes
from rampline.tuning.tuner import Budget

GIB = 2**30


def test_a_budget_counts_down_and_keeps_what_is_reserved() -> None:
    now = [100.0]
    budget = Budget(60, clock=lambda: now[0])
    now[0] += 10
    assert (budget.spent, budget.left) == (10, 50)
    budget.reserve(20)
    assert budget.left == 30
    budget.reserve(1000)  # the comparison at the end gets half at most
    assert budget.left == 20
    now[0] += 100
    assert budget.left == 0


def test_twice_the_batch_needs_twice_what_was_added_last() -> None:
    peaks = [1 * GIB, 2 * GIB, 4 * GIB]
    assert lacking_bytes(peaks, 5 * GIB) == 0
    assert lacking_bytes(peaks, 2 * GIB) == 4 * GIB - int(0.9 * 2 * GIB)
    assert lacking_bytes([GIB], 0) == 0  # nothing is known yet


def test_memory_is_that_of_this_machine() -> None:
    assert 10 * 2**20 < peak_bytes() < 2**40
    assert 0 < available_bytes() < 2**50
