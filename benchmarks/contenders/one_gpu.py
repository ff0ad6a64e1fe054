"""ResNet50 in the product's loop on one GPU: `python -m benchmarks.contenders.one_gpu --batch 256 --xla`.

Prints examples_per_second, real_vs_cached, teraflops and peak_share. `--cpu` tries it without a GPU, with `--size 32`.
"""

from __future__ import annotations

import argparse
import os
import statistics

import tensorflow as tf

from benchmarks.contenders.product_loop import make_role_engine, make_run
from benchmarks.contenders.turns import BLOCKS, print_figures
from benchmarks.contenders.work import Work, peak_mib, time_block
from rampline.config import BatchConfig, ModelConfig, RunConfig
from rampline.jobs.tf_config import ALONE

# Dense bf16 tensor operations per second in 1e12, from NVIDIA's data sheets; V100 and T4 have fp16 only.
PEAK_TERAFLOPS = {
    **{"B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L4": 121},
    **{"A10G": 70, "A10": 125, "RTX 4090": 165, "V100": 125, "T4": 65},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus and not options.cpu:
        print_figures({"not_measured": "TensorFlow sees no GPU here"})
    work = Work(
        model="ResNet50",
        image_shape=(options.size, options.size, 3),
        classes=1000,
        examples=max(4096, 4 * options.batch) if gpus else 4 * options.batch,
        batch_size=options.batch,
        steps=options.steps,
    )
    config = RunConfig(
        precision=options.precision,
        xla=options.xla,
        model=ModelConfig(name="ResNet50", head_units=0, dropout=0.0),
        batch=BatchConfig(size=options.batch),
    )
    print_figures(measure(work, config, os.environ.get("RAMPLINE_BENCH_GPU") or card_name()))


def measure(work: Work, config: RunConfig, card: str) -> dict[str, object]:
    """The figures; those of operations need a card whose peak is known."""
    engine = make_role_engine(config, work, ALONE)
    real, probe = make_run(engine), engine.make_probe("cached")
    real(work.steps)
    probe(work.steps)
    blocks = [(time_block(real, work), work.batch_size / probe(work.steps)) for _ in range(BLOCKS)]
    rate = statistics.median(figures["examples_per_second"] for figures, _ in blocks)
    teraflops = 3 * forward_operations(engine.state.model, work) * rate / 1e12
    peak = next((value for name, value in PEAK_TERAFLOPS.items() if name in card), None)
    return {
        "examples_per_second": rate,
        "peak_mib": peak_mib(),
        "card": card,
        "real_vs_cached": statistics.median(figures["examples_per_second"] / cached for figures, cached in blocks),
        "teraflops": teraflops,
        "peak_share": teraflops / peak if peak else None,
    }


def forward_operations(model: tf.keras.Model, work: Work) -> float:
    """Floating-point operations of the forward pass for one image, counted in the graph."""
    signature = tf.TensorSpec((1, *work.image_shape), tf.uint8)
    graph = tf.function(lambda images: model(images, training=True)).get_concrete_function(signature).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    return tf.compat.v1.profiler.profile(graph, options=options).total_float_ops


def card_name() -> str:
    """The GPU's name as its driver gives it; empty without one."""
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "") if gpus else ""


if __name__ == "__main__":
    main()
