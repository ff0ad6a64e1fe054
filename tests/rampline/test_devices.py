from typing import Literal

import pytest

from rampline import devices
from rampline.config import ClusterConfig, RunConfig, from_dict
from rampline.config.formats import to_dict
from rampline.devices import Devices, find_devices, visible_gpu_ids
from rampline.errors import ClusterConfigError
from rampline.jobs.launchers import resolve_virtual_devices
from rampline.jobs.roles import check_devices
from rampline.record.provenance import describe_machine, environment


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


@pytest.mark.parametrize("quota, cores", [("150000 100000", 2), ("20000 100000", 1), ("max 100000", 8), ("", 8)])
def test_a_container_may_have_fewer_cores_than_its_machine(quota, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: range(8))
    inner = tmp_path / "inner"  # where none is set
    inner.mkdir()
    monkeypatch.setattr(devices, "own_cgroups", lambda: [inner, tmp_path])
    (tmp_path / "cpu.max").write_text(quota)
    assert devices.available_cores() == cores


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    "visible,count",
    [
        (None, 4),
        ("0,2", 2),
        ("3", 1),
        ("", 1),
        ("-1", 1),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("GPU-8f2,1", 2),
        ("MIG-1", 1),
        ("none", 1),
        ("0,NoDevFiles,1", 1),
    ],
)
def test_cuda_visible_devices_is_respected(visible, count, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = find_devices()
    assert found.count == count
    assert bool(found.gpus) == (visible not in ("", "-1", "none"))


@pytest.mark.usefixtures("four_gpus")
def test_gpus_are_named_as_the_user_has_named_them_up_to_the_first_that_is_none(monkeypatch):
    assert visible_gpu_ids() == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 2, GPU-8f2 ,0,9,1")
    assert visible_gpu_ids() == ["2", "GPU-8f2", "0"]


def test_four_replicas_on_one_device_are_refused_with_the_way_out(no_gpu):
    with pytest.raises(ClusterConfigError) as error:
        check_devices(mirrored(4))
    assert str(error.value) == (
        "cluster.replicas=4 needs 4 devices: this machine has 1 (CPU); "
        "set cluster.virtual_devices=4 to run them as virtual devices on the CPU"
    )


def test_workers_with_several_replicas_are_told_to_be_more_workers(no_gpu):
    # Virtual devices, the way out of `mirrored`, are refused there.
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=2, replicas=2))
    with pytest.raises(ClusterConfigError, match=r"; let each worker have one device, and raise cluster.workers$"):
        check_devices(config, workers=2)


def test_virtual_devices_fit_anywhere(no_gpu):
    check_devices(mirrored(4, virtual_devices=4))


@pytest.mark.parametrize(
    "strategy, cluster, on_cpu",
    [
        *(("single", {}, 0), ("mirrored", {"replicas": 1}, 1), ("mirrored", {"replicas": 4}, 4)),
        *(("multi_worker", {"workers": 2}, 0), ("parameter_server", {"workers": 2, "parameter_servers": 1}, 0)),
    ],
)
def test_auto_makes_virtual_devices_where_there_is_no_gpu(no_gpu, strategy, cluster, on_cpu):
    config = RunConfig(strategy=strategy, cluster=ClusterConfig(virtual_devices="auto", **cluster))
    resolved = resolve_virtual_devices(config)
    assert resolved.cluster == ClusterConfig(virtual_devices=on_cpu, **cluster)
    check_devices(resolved)


@pytest.mark.usefixtures("four_gpus")
def test_auto_makes_none_where_there_is_a_gpu():
    config = RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=8, virtual_devices="auto"))
    assert resolve_virtual_devices(config).cluster == ClusterConfig(replicas=8)
    with pytest.raises(ClusterConfigError, match="needs 8 devices: this machine has 4"):
        check_devices(resolve_virtual_devices(config))


def replicas_of(**cluster) -> int:
    config = from_dict({"strategy": "mirrored", "cluster": {"replicas": "auto", **cluster}})
    assert to_dict(config)["cluster"]["replicas"] == config.cluster.replicas
    return config.cluster.replicas


@pytest.mark.usefixtures("four_gpus")
def test_replicas_auto_are_all_gpus():
    assert (replicas_of(), replicas_of(virtual_devices="auto")) == (4, 4)


def test_replicas_auto_without_a_gpu_are_the_virtual_devices(no_gpu):
    assert [replicas_of(virtual_devices=devices) for devices in (3, 0, "auto")] == [3, 1, 1]


def test_a_number_of_virtual_devices_stays(no_gpu):
    config = mirrored(2, virtual_devices=3)
    assert resolve_virtual_devices(config) is config


@pytest.mark.usefixtures("four_gpus")
def test_four_replicas_fit_on_four_gpus():
    check_devices(mirrored(4))


def workers(count: int, *, virtual_devices: int | Literal["auto"] = 0, replicas: int = 1) -> RunConfig:
    cluster = ClusterConfig(workers=count, virtual_devices=virtual_devices, replicas=replicas)
    return RunConfig(strategy="multi_worker", cluster=cluster)


def test_workers_without_a_gpu_share_the_processor(no_gpu):
    check_devices(workers(3), workers=3)


@pytest.mark.usefixtures("four_gpus")
def test_workers_fit_on_as_many_gpus_as_they_have_replicas(monkeypatch):
    check_devices(workers(2, replicas=2), workers=2)
    check_devices(workers(8, replicas=4))  # one on each machine
    with pytest.raises(ClusterConfigError) as error:
        check_devices(workers(3, replicas=2), workers=3)
    assert str(error.value).startswith("cluster.workers=3 needs 6 GPUs: this machine has 4 (")
    # One of the two would be without, and TensorFlow's collectives end with an error then.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ClusterConfigError) as error:
        check_devices(workers(2), workers=2)
    assert str(error.value) == (
        "cluster.workers=2 needs 2 GPUs: this machine has 1 (NVIDIA H200); "
        "set cluster.virtual_devices=1 to run them on the CPU"
    )
    check_devices(workers(2, virtual_devices=1), workers=2)
    resolved = resolve_virtual_devices(workers(2, virtual_devices="auto"))
    assert resolved == workers(2, virtual_devices=1)


@pytest.mark.usefixtures("four_gpus")
def test_what_is_trained_on_the_cpu_of_a_machine_with_gpus_is_another_machine_s():
    on_gpus, on_cpu = (describe_machine(environment(on_cpu=on_cpu)) for on_cpu in (False, True))
    assert on_gpus == f"{on_cpu.removesuffix(')')}, {', '.join(['NVIDIA H200'] * 4)})"
