"""What a role uses of the machine: CPU, memory and GPUs, sampled into `RUN_DIR/system/ROLE-INDEX.jsonl`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from rampline.devices import UUIDS
from rampline.record.events import append_line

# nvidia-ml-py comes with the extra `gpu`.
pynvml: Any = importlib.import_module("pynvml") if importlib.util.find_spec("pynvml") else None

BYTES_PER_MEBIBYTE = 2**20
# Between samples; the first comes sooner, so that a short run has one too.
FIRST_SAMPLE_SECONDS, INTERVAL_SECONDS = 1.0, 5.0


class SystemSampler:
    """A daemon thread of this process that appends one JSON object per sample; it ends with the process.

    A sample is `{"time", "cpu_percent", "memory_mebibytes", "machine_cpu_percent", "gpus": [{"utilization_percent",
    "memory_access_percent", "memory_mebibytes", "memory_total_mebibytes", "power_watts"}, …]}`. `cpu_percent` counts
    all threads of the process, 100 per busy core, and `memory_mebibytes` is its resident set; the machine's CPU is in
    [0, 100] over all cores, and GPUs (those that `CUDA_VISIBLE_DEVICES` leaves to this process) are measured as a
    whole, whoever uses them: the shares of the last second or less in which a kernel ran, and in which its memory was
    read or written. The first sample of a process has the `name` of each GPU too.

    Args:
        path: the file, made with its folder; a process that was restarted appends to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = psutil.Process()
        self._gpus = _visible_gpus()
        self._are_gpus_named = False

    def start(self) -> None:
        """Begin sampling."""
        # The first call of each only sets the point in time from which the next one measures.
        self._process.cpu_percent()
        psutil.cpu_percent()
        threading.Thread(target=self._run, name="system-metrics", daemon=True).start()

    def sample(self) -> dict[str, Any]:
        """One sample, since the one before."""
        gpus = [_measure_gpu(handle, is_named=self._are_gpus_named) for handle in self._gpus]
        self._are_gpus_named = True
        return {
            "time": time.time(),
            "cpu_percent": self._process.cpu_percent(),
            "memory_mebibytes": _mebibytes(self._process.memory_info().rss),
            "machine_cpu_percent": psutil.cpu_percent(),
            "gpus": gpus,
        }

    def _run(self) -> None:
        # A full disk, or a container that hides its figures, must neither fail the training nor fill its log.
        with contextlib.suppress(OSError, psutil.Error):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            time.sleep(FIRST_SAMPLE_SECONDS)
            while True:
                append_line(self._path, self.sample())
                time.sleep(INTERVAL_SECONDS)


def _visible_gpus() -> list[Any]:
    """NVML handles of the GPUs that CUDA shows to this process; none where there is no driver."""
    if pynvml is None:
        return []
    try:
        pynvml.nvmlInit()
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = range(pynvml.nvmlDeviceGetCount()) if chosen is None else [n for n in chosen.split(",") if n.strip()]
        return [_gpu_handle(str(name).strip()) for name in names]
    except (pynvml.NVMLError, ValueError):
        return []


def _gpu_handle(name: str) -> Any:
    if name.startswith(UUIDS):
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    return pynvml.nvmlDeviceGetHandleByIndex(int(name))


def _measure_gpu(handle: Any, *, is_named: bool) -> dict[str, Any]:
    """What this GPU tells; a MIG slice, for one, has no utilisation of its own."""
    measured: dict[str, Any] = {}
    if not is_named:
        with contextlib.suppress(pynvml.NVMLError):
            measured["name"] = pynvml.nvmlDeviceGetName(handle)
    with contextlib.suppress(pynvml.NVMLError):
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        measured |= {"utilization_percent": rates.gpu, "memory_access_percent": rates.memory}
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        used, total = _mebibytes(memory.used), _mebibytes(memory.total)
        measured |= {"memory_mebibytes": used, "memory_total_mebibytes": total}
    with contextlib.suppress(pynvml.NVMLError):
        measured["power_watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return measured


def _mebibytes(count: int) -> float:
    return round(count / BYTES_PER_MEBIBYTE, 1)
