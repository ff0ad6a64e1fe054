"""What a role uses of the machine: CPU, memory and GPUs, sampled into `RUN_DIR/system/ROLE-INDEX.jsonl`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

# nvidia-ml-py comes with the extra `gpu`.
pynvml: Any = importlib.import_module("pynvml") if importlib.util.find_spec("pynvml") else None

BYTES_PER_MEBIBYTE = 2**20
FIRST_SAMPLE_SECONDS = 1.0


class SystemSampler:
    """A daemon thread of this process that appends one JSON object per sample; it ends with the process.

    A sample is `{"time", "cpu_percent", "memory_mebibytes", "machine_cpu_percent", "gpus": [{"utilization_percent",
    "memory_mebibytes", "power_watts"}, …]}`. `cpu_percent` counts all threads of the process, 100 per busy core, and
    `memory_mebibytes` is its resident set; the machine's CPU is in [0, 100] over all cores, and GPUs (those that
    `CUDA_VISIBLE_DEVICES` leaves to this process) are measured as a whole, whoever uses them.

    Args:
        path: the file, made with its folder; a process that was restarted appends to it.
        interval_seconds: time between samples; the first comes sooner, so that a short run has one too.
    """

    def __init__(self, path: Path, *, interval_seconds: float = 5.0) -> None:
        self._path = path
        self._interval_seconds = interval_seconds
        self._process = psutil.Process()
        self._gpus = _visible_gpus()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def start(self) -> None:
        """Begin sampling."""
        # The first call of each only sets the point in time from which the next one measures.
        self._process.cpu_percent()
        psutil.cpu_percent()
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end the thread."""
        self._stopped.set()
        self._thread.join()

    def sample(self) -> dict[str, Any]:
        """One sample, since the one before."""
        return {
            "time": time.time(),
            "cpu_percent": self._process.cpu_percent(),
            "memory_mebibytes": round(self._process.memory_info().rss / BYTES_PER_MEBIBYTE, 1),
            "machine_cpu_percent": psutil.cpu_percent(),
            "gpus": [_measure_gpu(handle) for handle in self._gpus],
        }

    def _run(self) -> None:
        # A full disk, or a container that hides its figures, must neither fail the training nor fill its log.
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stopped.wait(min(FIRST_SAMPLE_SECONDS, self._interval_seconds))
            self._append()
            while not self._stopped.wait(self._interval_seconds):
                self._append()
            self._append()
        except (OSError, psutil.Error):
            return

    def _append(self) -> None:
        # One write to a file opened for appending: a line is there whole or not at all, also after a kill.
        line = json.dumps(self.sample()) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


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
    if name.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    return pynvml.nvmlDeviceGetHandleByIndex(int(name))


def _measure_gpu(handle: Any) -> dict[str, float]:
    """What this GPU tells; a MIG slice, for one, has no utilisation of its own."""
    measures: dict[str, Callable[[Any], float]] = {
        "utilization_percent": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "memory_mebibytes": lambda gpu: round(pynvml.nvmlDeviceGetMemoryInfo(gpu).used / BYTES_PER_MEBIBYTE, 1),
        "power_watts": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    }
    measured = {}
    for name, measure in measures.items():
        try:
            measured[name] = measure(handle)
        except pynvml.NVMLError:
            continue
    return measured
