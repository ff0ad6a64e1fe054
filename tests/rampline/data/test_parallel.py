import os
import time

import pytest

from rampline.data.parallel import in_chunks, map_in_order


def test_results_come_in_order():
    def slow_for_even(number):
        time.sleep(0.002 * (number % 2 == 0))
        return number * 10

    assert list(map_in_order(slow_for_even, range(50))) == [number * 10 for number in range(50)]


def test_items_are_taken_only_as_needed():
    taken = []
    results = map_in_order(lambda number: number, (taken.append(number) or number for number in range(10_000)))
    for _ in range(5):
        next(results)
    assert len(taken) <= 5 + 2 * (os.cpu_count() or 1)


def test_an_error_is_raised_in_its_turn():
    results = map_in_order(lambda number: 1 // (3 - number), range(10))
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_chunks():
    assert list(in_chunks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_chunks([], 3)) == []
