"""The two trainings that contenders are compared on, and how long each of them is timed."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.datasets import open_shared
from rampline.data.dataset import PreparedDataset


@dataclass(frozen=True, kw_only=True)
class Work:
    """A network, its data, and the steps that are timed.

    Attributes:
        model: the network's name for the product.
        image_shape: (height, width, channels).
        classes: of the labels, which are random.
        examples: of the training split.
        batch_size: examples of one step (of one replica with several workers).
        steps: of each timed block; as many come before the first, untimed.
        blocks: timed blocks, of which the median counts.
    """

    model: str
    image_shape: tuple[int, int, int]
    classes: int
    examples: int
    batch_size: int
    steps: int
    blocks: int = 3

    @property
    def timed_blocks(self) -> int:
        """Fewer in the quick mode."""
        return 2 if is_quick() else self.blocks

    def open_dataset(self) -> PreparedDataset:
        """Random images of that shape, prepared."""
        held_out = max(self.examples // 10, 2 * self.batch_size)
        splits = {"train": self.examples, "validation": held_out, "test": held_out}
        return open_shared(f"{self.model}-{self.examples}", shape=self.image_shape, splits=splits, classes=self.classes)


def is_quick() -> bool:
    """Whether the quick mode runs."""
    return os.environ.get("RAMPLINE_BENCH_QUICK") == "1"


WORKS = {
    # Seed D: Fashion-MNIST's size and network.
    "convnet": Work(
        model="convnet",
        image_shape=(28, 28, 1),
        classes=10,
        examples=60_000,
        batch_size=64,
        steps=250,
    ),
    # Seed A: MobileNetV2 with its head.
    "mobilenet": Work(
        model="MobileNetV2", image_shape=(128, 128, 3), classes=2, examples=2_000, batch_size=32, steps=5
    ),
    # The same in short epochs, for whole runs.
    "mobilenet-short": Work(
        model="MobileNetV2", image_shape=(128, 128, 3), classes=2, examples=640, batch_size=32, steps=5
    ),
}


def measure_rate(run: Callable[[int], float], work: Work, begin: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Time blocks of steps after one that is not timed.

    Args:
        run: makes so many steps and returns examples per second.
        work: how many.
        begin: called before the timed blocks.
    """
    run(work.steps)
    begin()
    return rate_figures([run(work.steps) for _ in range(work.timed_blocks)])


def rate_figures(rates: Sequence[float]) -> dict[str, Any]:
    """The figures of a process from the rates of its blocks."""
    return {"examples_per_second": statistics.median(rates), "blocks": list(rates), "peak_mib": peak_mib()}


def peak_mib() -> float:
    """The most memory this process has had at once, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
