"""The machine and the versions, as far as they change figures."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import psutil

PACKAGES = ("rampline", "tensorflow", "keras", "prefect", "mlflow", "numpy")


@cache
def describe_host() -> str:
    """Cores, processor and memory: `2 cores (Intel ...), 23 GiB`."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({models[0] if models else platform.machine()}), {memory:.0f} GiB"


@cache
def list_versions() -> dict[str, str]:
    """Of Python and the packages that count."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
