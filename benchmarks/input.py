"""What is measured about input: batches of small images, and the preparation of photographs."""

from __future__ import annotations

from benchmarks.measurement import Contender, Measurement

PIPELINE = "benchmarks.contenders.input_pipeline"
PREPARATION = "benchmarks.contenders.input_preparation"


# As rampline.data.preparation starts it.
WITHOUT_GPU = {"TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
ONE_THREAD = {**WITHOUT_GPU, "TF_NUM_INTEROP_THREADS": "1"}


def preparation(kind: str, name: str, environment: dict[str, str]) -> Contender:
    """A way to get through the photographs."""
    return Contender(name=name, arguments=(PREPARATION, kind), environment=environment)


PREPARED = preparation("product", "preparation", WITHOUT_GPU)
BY_HAND = preparation("by-hand", "one core, by hand", ONE_THREAD)
AS_PREPARED = preparation("as-prepared", "one core, as prepared", ONE_THREAD)
EACH_BY_HAND = preparation("by-hand-each", "a process on each core, by hand", ONE_THREAD)


def photographs(
    key: str,
    title: str,
    other: Contender,
    one_core: Contender,
    about: str,
    *,
    target: float | None = None,
    in_quick: bool,
) -> Measurement:
    """Photographs per second, over those of one core; in the same rounds."""
    return Measurement(
        key=key,
        title=title,
        figure="examples_per_second",
        contenders=(other, one_core),
        numerator=other.name,
        denominator=one_core.name,
        target=target,
        in_quick=in_quick,
        about=about,
        together="preparation",
    )


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
    photographs(
        "input-preparation",
        "JPEG preparation on all cores vs decoding and resizing on one",
        PREPARED,
        BY_HAND,
        "JPEGs of 500x375 to 128 pixels, storage in memory. By hand it is decode_jpeg and resize with antialiasing in "
        "a compiled loop in a process that has one core, with the files read already. The preparation reduces JPEGs "
        "while it decodes them and takes the mean of areas (docs/architecture.md); it also lists and reads the files "
        "twice, hashes what it reads and what it writes, writes, and syncs.",
        target=1.8,
        in_quick=True,
    ),
    photographs(
        "input-preparation-cores",
        "JPEG preparation on all cores vs its own decoding and resizing on one",
        PREPARED,
        AS_PREPARED,
        "The same compiled loop with the preparation's decoding and resizing: what all else and the sharing of the "
        "cores cost.",
        in_quick=False,
    ),
    photographs(
        "input-preparation-by-hand",
        "JPEG decoding and resizing by hand, on each core at once vs on one",
        EACH_BY_HAND,
        BY_HAND,
        "What this machine's cores allow to the same work, in the same rounds.",
        in_quick=False,
    ),
)
