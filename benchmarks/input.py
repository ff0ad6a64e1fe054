"""What is measured about input: batches of small images, and the preparation of photographs."""

from __future__ import annotations

from benchmarks.measurement import Contender, Measurement

PIPELINE = "benchmarks.contenders.input_pipeline"
PREPARATION = "benchmarks.contenders.input_preparation"


MEASUREMENTS = (
    Measurement(
        key="input-pipeline-b64",
        title="28x28 batches of 64 with a full deterministic shuffle vs a map per example",
        figure="examples_per_second",
        contenders=tuple(
            Contender(name=name, arguments=(PIPELINE, kind, "--batch=64"))
            for name, kind in (
                ("prepared pipeline", "product"),
                ("per-example map", "naive"),
                ("per-example map, AUTOTUNE", "naive_autotune"),
            )
        ),
        numerator="prepared pipeline",
        denominator="per-example map",
        target=10.0,
        about=(
            "60,000 uint8 images in memory, fetched in a compiled loop that does nothing else. The pipeline that a "
            "user writes is from_tensor_slices, shuffle(60000), map(cast and divide by 255), batch; with AUTOTUNE also "
            "in the map and a prefetch. Ours leaves the cast to the device: it moves a quarter of the bytes."
        ),
    ),
    Measurement(
        key="input-preparation",
        title="JPEG preparation on all cores vs decoding and resizing on one",
        figure="examples_per_second",
        contenders=(
            Contender(
                name="preparation",
                arguments=(PREPARATION, "product"),
                # As rampline.data.preparation starts it.
                environment={"TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
            ),
            Contender(
                name="one core",
                arguments=(PREPARATION, "bound"),
                environment={
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_NUM_INTEROP_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "-1",
                },
            ),
        ),
        numerator="preparation",
        denominator="one core",
        target=1.8,
        about=(
            "JPEGs of 500x375 to 128 pixels, storage in memory. The bound is decode_jpeg and resize in a compiled loop "
            "in a process that has one core, with the files read already. The preparation also lists and reads the "
            "files twice, hashes what it reads and what it writes, writes, and syncs."
        ),
    ),
)
