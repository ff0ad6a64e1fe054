"""How much memory a trial may take on the processor, and how much the next larger batch would."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Sequence
from pathlib import Path

import psutil

from rampline.devices import own_cgroups

USABLE_SHARE = 0.9


def available_bytes() -> int:
    """Memory that may still be taken: of the machine, or of the container or the Slurm job where that allows less."""
    free = psutil.virtual_memory().available
    for folder in own_cgroups():
        with contextlib.suppress(OSError, ValueError):  # no limit ("max")
            limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
            cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
            free = min(free, limit - used + int(cached))
    return max(0, free)


def peak_bytes() -> int:
    """The most memory that this process ever had; Linux counts in KiB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def lacking_bytes(peaks: Sequence[int], available: int) -> int:
    """Bytes that twice the batch would lack; 0 where it fits, or nothing is known.

    Args:
        peaks: peak memory after each batch so far, each twice as large as the one before.
        available: bytes that may still be taken.
    """
    if len(peaks) < 2:
        return 0
    needed = 2 * (peaks[-1] - peaks[-2])
    return max(0, needed - int(USABLE_SHARE * available))


def is_out_of_memory(error: Exception) -> bool:
    """Whether a step failed because a device, or the machine, had no memory for it."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"
    return named or "out of memory" in str(error).lower()


def is_gpu_taken(error: Exception) -> bool:
    """Whether TensorFlow could not make its context on a GPU, which takes a few hundred MB of the GPU's memory."""
    return "cudaSetDevice" in str(error) and is_out_of_memory(error)


def be_first_to_end() -> None:
    """Let the kernel, when memory runs out, end this process before any other of this machine."""
    with contextlib.suppress(OSError):  # not Linux, or not allowed in this container
        Path("/proc/self/oom_score_adj").write_text("1000")
