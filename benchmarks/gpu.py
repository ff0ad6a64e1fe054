"""One GPU: ResNet50 at 224 pixels, with mixed precision and XLA; without one the page says: not measured."""

from __future__ import annotations

from benchmarks.curve import Curve
from benchmarks.measurement import Contender

SETTINGS = (
    ("float32", ("--precision=float32", "--batch=64")),
    ("mixed_bfloat16, batch 64", ("--precision=mixed_bfloat16", "--batch=64")),
    ("mixed_bfloat16, batch 256", ("--precision=mixed_bfloat16", "--batch=256")),
    ("mixed_bfloat16, batch 256, XLA", ("--precision=mixed_bfloat16", "--batch=256", "--xla")),
    ("mixed_float16, batch 256, XLA", ("--precision=mixed_float16", "--batch=256", "--xla")),
)

CURVES = (
    Curve(
        key="gpu-resnet50",
        title="One GPU: ResNet50 at 224 pixels",
        x="settings",
        points=tuple(
            (name, Contender(name=name, arguments=("benchmarks.contenders.one_gpu", *arguments), timeout_seconds=600))
            for name, arguments in SETTINGS
        ),
        figures={
            "examples_per_second": "images/s",
            "peak_share": "of the card's bf16 peak",
            "real_vs_cached": "real data vs one cached batch",
        },
        about="Random images from memory, every layer trained. Operations are counted in the graph of a forward pass, "
        "times three for a training step, and compared with the dense bf16 peak of the card's data sheet. Real data "
        "below 0.97 of one cached batch is bound by its input.",
    ),
)
