"""What `data.cache=auto` stands for: the quickest storage that there is room for. No TensorFlow."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import psutil

# Every role on a host holds a copy of a split, and for a moment two while it reads it: room for four roles.
MEMORY_SHARE = 1 / 8
DISK_SHARE = 1 / 4


def choose_cache(examples: int, image_shape: tuple[int, int, int], folder: Path) -> tuple[str, str]:
    """`memory`, `disk` or `none`, and a line that says why.

    All three give the same pixels in the same order. The choice is made when a dataset is prepared and kept with it:
    what is free later, or on another machine that resumes with the same home, changes nothing.

    Args:
        examples: at most so many are stored, in all splits together.
        image_shape: `(height, width, channels)` after resizing.
        folder: existing; where the dataset will lie.
    """
    size = examples * math.prod(image_shape)
    memory, disk = psutil.virtual_memory().available, shutil.disk_usage(folder).free
    cache = choose_by_size(size, memory=memory, disk=disk)
    gib = 2**30
    return cache, (
        f"data.cache=auto: {cache} ({size / gib:.2f} GiB decoded; free are {memory / gib:.1f} GiB of memory, "
        f"{disk / gib:.1f} GiB of disk)"
    )


def choose_by_size(size: int, *, memory: int, disk: int) -> str:
    """`memory`, else `disk`, where the decoded images fit into their share of what is free, else `none`; in bytes."""
    if size <= MEMORY_SHARE * memory:
        return "memory"
    return "disk" if size <= DISK_SHARE * disk else "none"
