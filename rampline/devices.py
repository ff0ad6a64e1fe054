"""What this machine has to train on, found without TensorFlow: devices, cores and ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia/gpus")
CGROUP = Path("/sys/fs/cgroup")
NVIDIA_SMI_TIMEOUT_SECONDS = 20
LOOPBACK = "127.0.0.1"
# How the identifiers of GPUs, and of slices of them, begin.
UUIDS = ("GPU-", "MIG-")

# Names of the global concurrency limits that flow runs take devices from.
GPU_SLOTS, CPU_SLOTS = "gpu", "cpu-slots"


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    for folder in own_cgroups():
        with suppress(OSError, ValueError):  # none is set ("max")
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            cores = min(cores, max(1, round(quota / period)))
    return cores


def own_cgroups() -> list[Path]:
    """The control groups that this process is in, of version 2; the innermost first."""
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = CGROUP / next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        return [folder for folder in (own, *own.parents) if folder.is_relative_to(CGROUP)]
    return []


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Ports of an address, or of all with an empty one, that nobody listens on at the moment; all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True, kw_only=True)
class Devices:
    """GPUs that TensorFlow would see, by name; without any, the CPU counts as one device."""

    gpus: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Devices that can each hold one replica."""
        return len(self.gpus) or 1

    @property
    def slots(self) -> str:
        """Name of the concurrency limit with a slot per device: `gpu`, or `cpu-slots` on a machine without one."""
        return GPU_SLOTS if self.gpus else CPU_SLOTS

    def __str__(self) -> str:
        return f"{self.count} ({', '.join(self.gpus) or 'CPU'})"


def find_devices() -> Devices:
    """The GPUs of this machine that `CUDA_VISIBLE_DEVICES` leaves visible, in its order."""
    return Devices(gpus=tuple(name for _, name in _visible_gpus()))


def visible_gpu_ids() -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` may name: its own entries where it is set, else every GPU's number."""
    return [entry for entry, _ in _visible_gpus()]


def visible_gpus_by_number() -> dict[str, str]:
    """What `CUDA_VISIBLE_DEVICES` may name, by the GPU's number: two commands may name a GPU in two ways.

    One whose number is not known is there by its entry.
    """
    entries = visible_gpu_ids()
    uuids = _uuids() if any(entry.startswith(UUIDS) for entry in entries) else []
    numbers = {entry: [str(n) for n, uuid in enumerate(uuids) if uuid.startswith(entry)] for entry in entries}
    # CUDA takes the beginning of an identifier, too, where it is that of one GPU.
    return {own[0] if len(own) == 1 else entry: entry for entry, own in numbers.items()}


def _visible_gpus() -> Iterator[tuple[str, str]]:
    """Each by its entry in `CUDA_VISIBLE_DEVICES`, and by its name."""
    gpus, visible = _gpus_of_driver() or _gpus_of_smi(), os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = map(str, range(len(gpus))) if visible is None else (part.strip() for part in visible.split(","))
    for entry in entries:
        is_number = entry.isdecimal() and int(entry) < len(gpus)
        # CUDA stops reading at the first entry that names no device, such as `NoDevFiles`.
        if not gpus or not (is_number or entry.startswith(UUIDS)):
            return
        yield entry, gpus[int(entry)] if is_number else entry


def _gpus_of_driver() -> tuple[str, ...]:
    return tuple(model or "NVIDIA GPU" for model in _read_driver("Model"))


def _gpus_of_smi() -> tuple[str, ...]:
    return tuple(line.partition(":")[2].partition("(")[0].strip() for line in _list_by_smi())


def _uuids() -> list[str]:
    """Of all GPUs, in the order of their numbers."""
    uuids = _read_driver("GPU UUID")
    # A driver that no process has used yet has question marks there.
    if uuids and all(uuid and "?" not in uuid for uuid in uuids):
        return uuids
    return [line.partition("(UUID: ")[2].rstrip(")") for line in _list_by_smi()]


def _read_driver(name: str) -> list[str]:
    """Each `information` file has lines such as `Model: NVIDIA H200`; folders are in PCI order, as CUDA has them."""
    values = []
    for file in sorted(NVIDIA_DRIVER.glob("*/information")):
        lines = (line.partition(":") for line in file.read_text().splitlines())
        values.append(next((value.strip() for found, _, value in lines if found == name), ""))
    return values


def _list_by_smi() -> list[str]:
    """Lines are `GPU 0: NVIDIA H200 (UUID: GPU-…)`; a driver without /proc entries is common in containers."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        output = subprocess.run(
            [program, "-L"], capture_output=True, text=True, check=True, timeout=NVIDIA_SMI_TIMEOUT_SECONDS
        ).stdout
    except (subprocess.SubprocessError, OSError):
        return []
    return [line for line in output.splitlines() if line.startswith("GPU ")]
