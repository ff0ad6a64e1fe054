"""What many replicas take, from what one and two take: on made-up machines whose answer is known."""

import pytest

from rampline.forecast.forecast import Place, between

CORES = Place(is_shared=True, cores=2)
DEVICES = Place(is_shared=False, cores=2)


@pytest.mark.parametrize("place", [CORES, DEVICES, Place(is_shared=True, cores=16)])
@pytest.mark.parametrize("of", [2, 4])
def test_what_was_read_comes_out_again(place: Place, of: int) -> None:
    assert place.work(10.0, 16.0, of=of, replicas=1) == pytest.approx(10.0)
    assert place.work(10.0, 16.0, of=of, replicas=of) == pytest.approx(16.0)
    assert place.all_reduce(3.0, 1.0, of=of, replicas=of) == pytest.approx(3.0)
    assert place.all_reduce(3.0, 1.0, of=of, replicas=1) == 0


def test_replicas_beyond_the_cores_take_turns() -> None:
    assert [CORES.work(10.0, 16.0, of=2, replicas=n) for n in (4, 8)] == pytest.approx([32.0, 64.0])


def test_as_long_as_there_are_cores_each_doubling_costs_the_same_factor() -> None:
    many = Place(is_shared=True, cores=8)
    costs = [many.work(10.0, 12.0, of=2, replicas=n) for n in (4, 8, 16)]
    assert costs == pytest.approx([14.4, 17.28, 2 * 17.28])


def test_a_single_core_is_full_with_one() -> None:
    assert Place(is_shared=True, cores=1).work(10.0, 20.0, of=2, replicas=4) == pytest.approx(40.0)


def test_devices_of_their_own_share_nothing_more() -> None:
    assert DEVICES.work(10.0, 11.0, of=2, replicas=64) == 11.0


def test_an_evaluation_that_is_divided_gains_no_more_than_there_are_cores() -> None:
    assert CORES.shared_work(10.0, 6.0, of=2, replicas=8) == pytest.approx(6.0)
    assert DEVICES.shared_work(10.0, 5.0, of=2, replicas=4) == pytest.approx(2.5)


def test_a_ring_pays_latency_by_hop_and_bytes_by_share() -> None:
    """Of 8 ms over two, 2 ms are latency: four send 1.5 times the bytes in three times the hops."""
    assert DEVICES.all_reduce(8.0, 2.0, of=2, replicas=4) == pytest.approx(2.0 * 3 + 6.0 * 1.5)
    assert DEVICES.all_reduce(8.0, 9.0, of=2, replicas=4) == pytest.approx(8.0 * 3)


def test_replicas_that_are_more_than_the_cores_take_turns() -> None:
    """On two cores four send what two have sent, and wait three times for who waits for a core: all twice as long."""
    assert CORES.all_reduce(8.0, 2.0, of=2, replicas=4) == pytest.approx((2.0 * 3 + 6.0) * 2)
    four_cores = Place(is_shared=True, cores=4)
    assert four_cores.all_reduce(8.0, 2.0, of=2, replicas=4) == pytest.approx(2.0 * 3 + 6.0 * 1.5)
    assert four_cores.all_reduce(8.0, 2.0, of=2, replicas=8) == pytest.approx((2.0 * 7 + 6.0 * 1.5) * 2)


def test_who_is_more_than_the_cores_takes_turns_at_all_else_too() -> None:
    assert [CORES.in_turns(3.0, of=2, replicas=n) for n in (2, 4, 8)] == pytest.approx([3.0, 6.0, 12.0])
    four_cores = Place(is_shared=True, cores=4)
    assert [four_cores.in_turns(3.0, of=2, replicas=n) for n in (4, 5, 8)] == pytest.approx([3.0, 3.75, 6.0])
    assert DEVICES.in_turns(3.0, of=2, replicas=64) == 3.0


@pytest.mark.parametrize(
    "size, value",
    [(16, 10.0), (40, 16.0), (64, 22.0), (128, 39.0), (256, 73.0), (512, 141.0), (8, 8.0), (1, 6.25)],
)
def test_between_readings_is_the_line_through_the_nearest(size: int, value: float) -> None:
    assert between([16, 64, 256], [10.0, 22.0, 73.0], size) == pytest.approx(value)


def test_no_line_leads_below_its_share_of_the_smallest() -> None:
    assert between([64, 128], [10.0, 30.0], 8) == pytest.approx(10.0 / 8)
    assert between([64], [10.0], 32) == pytest.approx(5.0)
