import pytest

from rampline import devices
from rampline.config import ClusterConfig, RunConfig
from rampline.devices import Devices, check_devices, find_devices
from rampline.errors import ClusterConfigError

INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 11\n"


@pytest.fixture
def four_gpus(tmp_path, monkeypatch):
    """A driver folder as the kernel module makes it, for four GPUs."""
    for number in range(4):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(INFORMATION)
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def mirrored(replicas: int, virtual_devices: int = 0) -> RunConfig:
    return RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=replicas, virtual_devices=virtual_devices))


def test_without_gpu_the_cpu_is_one_device(no_gpu):
    assert find_devices() == Devices(gpus=())
    assert find_devices().count == 1


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    "visible,count",
    [(None, 4), ("0,2", 2), ("3", 1), ("", 1), ("-1", 1), ("0,-1,1", 1), ("0,9,1", 1), ("GPU-8f2,1", 2)],
)
def test_cuda_visible_devices_is_respected(visible, count, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = find_devices()
    assert found.count == count
    assert bool(found.gpus) == (visible not in ("", "-1"))


def test_four_replicas_on_one_device_are_refused_with_the_way_out(no_gpu):
    with pytest.raises(ClusterConfigError) as error:
        check_devices(mirrored(4))
    assert str(error.value) == (
        "cluster.replicas=4 needs 4 devices: this machine has 1 (CPU); "
        "set cluster.virtual_devices=4 to run them as virtual devices on the CPU"
    )


def test_virtual_devices_fit_anywhere(no_gpu):
    check_devices(mirrored(4, virtual_devices=4))


@pytest.mark.usefixtures("four_gpus")
def test_four_replicas_fit_on_four_gpus():
    check_devices(mirrored(4))
    with pytest.raises(ClusterConfigError, match="needs 8 devices: this machine has 4"):
        check_devices(mirrored(8))
