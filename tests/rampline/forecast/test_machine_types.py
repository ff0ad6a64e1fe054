"""The file of machine types: what it may hold, and what a sum over its links takes."""

from pathlib import Path

import pytest

from rampline.errors import ConfigError
from rampline.forecast.machine_types import MachineType, read_machine_types


def write(folder: Path, text: str) -> Path:
    file = folder / "machines.yaml"
    file.write_text(text)
    return file


def test_a_file_of_machine_types(tmp_path: Path) -> None:
    file = write(tmp_path, "4xA100: {devices: 4, compute: 30, link_gbit: 2400, price_per_hour: 14.7}\nlaptop: {}\n")
    found = read_machine_types(file)
    assert list(found) == ["4xA100", "laptop"]
    assert (found["4xA100"].devices, found["4xA100"].price_per_hour) == (4, 14.7)
    assert found["laptop"] == MachineType()


@pytest.mark.parametrize(
    "text, message",
    [
        ("[]", "machines.yaml: it must map names of machine types to their figures, such as"),
        ("a: 3", "machines.yaml: a=3 is not allowed: it must be a mapping of keys"),
        ("a: {compute: 0}", "machines.yaml: a: compute=0 is not allowed: it must be a number greater than 0"),
        ("a: {gpus: 2}", "machines.yaml: a: unknown key gpus"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"machines\.yaml") as refused:
        read_machine_types(write(tmp_path, text))
    assert str(refused.value).startswith(message)


def test_a_process_has_as_many_replicas_as_its_machine_has_devices() -> None:
    machine = MachineType(devices=4)
    assert machine.shortage(8) == "8 replicas of one process need as many devices: it has 4"
    assert machine.shortage(4) == ""


@pytest.mark.parametrize(
    "workers, replicas, price",
    [(1, 1, 10.0), (4, 1, 10.0), (5, 1, 20.0), (3, 2, 20.0), (2, 3, 20.0), (2, 4, 20.0)],
)
def test_workers_share_a_machine_that_has_the_devices(workers: int, replicas: int, price: float) -> None:
    assert MachineType(devices=4, price_per_hour=10.0).price_of(workers=workers, replicas=replicas) == price


def test_a_machine_without_a_price_has_none_and_a_free_one_costs_nothing() -> None:
    assert MachineType().price_of(workers=2, replicas=1) is None
    assert MachineType(price_per_hour=0.0).price_of(workers=2, replicas=1) == 0


def test_one_replica_sends_nothing() -> None:
    assert MachineType().all_reduce_ms(10**9, 1) == 0
