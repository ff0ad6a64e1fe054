"""The two trainings that variants are compared on, and how long each of them is timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

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
        steps: of each timed block; as many come before the first, and a tenth before each, untimed.
        pair_steps: the same of two processes at once, which take longer for a step; as many by default.
    """

    model: str
    image_shape: tuple[int, int, int]
    classes: int
    examples: int
    batch_size: int
    steps: int
    pair_steps: int | None = None

    def of_a_pair(self) -> Work:
        """The same in the blocks of two processes at once."""
        return replace(self, steps=self.pair_steps or self.steps)

    @property
    def lead_in(self) -> int:
        """Untimed steps, which use up what the input's buffers have gathered while others had their turn."""
        return max(1, self.steps // 10)

    def open_dataset(self) -> PreparedDataset:
        """Random images of that shape, prepared."""
        held_out = max(self.examples // 10, 2 * self.batch_size)
        splits = {"train": self.examples, "validation": held_out, "test": held_out}
        return open_shared(f"{self.model}-{self.examples}", shape=self.image_shape, splits=splits, classes=self.classes)


def is_quick() -> bool:
    """Whether the quick mode runs."""
    return os.environ.get("RAMPLINE_BENCH_QUICK") == "1"


WORKS = {
    # The size and the network of fashion_mnist.
    "convnet": Work(
        model="convnet",
        image_shape=(28, 28, 1),
        classes=10,
        examples=60_000,
        batch_size=64,
        steps=250,
        pair_steps=125,
    ),
    # The network of cats_vs_dogs: MobileNetV2 with its head.
    "mobilenet": Work(
        model="MobileNetV2", image_shape=(128, 128, 3), classes=2, examples=2_000, batch_size=32, steps=5
    ),
    # The same in short epochs, for whole runs.
    "mobilenet-short": Work(
        model="MobileNetV2", image_shape=(128, 128, 3), classes=2, examples=640, batch_size=32, steps=5
    ),
}


def time_block(run: Callable[[int], float], work: Work) -> dict[str, float]:
    """The figures of a block of steps.

    Args:
        run: makes so many steps and returns examples per second.
        work: how many.
    """
    run(work.lead_in)
    return {"examples_per_second": run(work.steps), "peak_mib": peak_mib()}


def peak_mib() -> float:
    """The most memory this process has had at once, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
