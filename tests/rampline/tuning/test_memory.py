"""Memory of the trials."""

from rampline.jobs.memory import available_bytes, lacking_bytes, peak_bytes

GIB = 2**30


def test_twice_the_batch_needs_twice_what_was_added_last() -> None:
    peaks = [1 * GIB, 2 * GIB, 4 * GIB]
    assert lacking_bytes(peaks, 5 * GIB) == 0
    assert lacking_bytes(peaks, 2 * GIB) == 4 * GIB - int(0.9 * 2 * GIB)
    assert lacking_bytes([GIB], 0) == 0  # nothing is known yet


def test_memory_is_that_of_this_machine() -> None:
    assert 10 * 2**20 < peak_bytes() < 2**40
    assert 0 < available_bytes() < 2**50
