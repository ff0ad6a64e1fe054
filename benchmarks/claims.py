"""What is claimed of the product's speed: each claim is a row of docs/performance.md, with its target.

The convnet is that of fashion_mnist (28 x 28 x 1, batch 64), MobileNetV2 that of cats_vs_dogs (128 x 128 x 3, batch
32); images are random.
"""

from __future__ import annotations

from typing import Any

from benchmarks.measurement import ROUNDS_IN_TURNS, Measurement, Variant

VARIANTS = "benchmarks.variants."
NETWORKS = {"convnet": "convnet 28x28 b64", "mobilenet": "MobileNetV2 128 px b32"}
# As rampline.data.preparation starts it.
WITHOUT_GPU = {"TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
ONE_THREAD = {**WITHOUT_GPU, "TF_NUM_INTEROP_THREADS": "1"}


def variant(name: str, module: str, *arguments: str, **settings: Any) -> Variant:
    """One way of doing the work: a module of `benchmarks.variants` and its arguments."""
    return Variant(name=name, arguments=(VARIANTS + module, *arguments), **settings)


def training(kind: str, network: str, *more: str) -> Variant:
    """One way of training a network in one process."""
    names = {"fit": "Model.fit", "bare": "bare loop"}
    return variant(names.get(kind, kind), "training", kind, f"--network={network}", *more, takes_turns=True)


def workers(name: str, kind: str, network: str, *more: str) -> Variant:
    """Two processes, or more, on one core each."""
    return variant(name, "workers", kind, f"--network={network}", *more, takes_turns=True)


def product_run(name: str, strategy: str, network: str = "convnet") -> Variant:
    """A whole run, its roles started as `rampline run` starts them."""
    return variant(name, "product_run", strategy, f"--network={network}")


def ratio(
    key: str, title: str, above: Variant, below: Variant, target: float, about: str, **settings: Any
) -> Measurement:
    """The ratio of two variants' figures, by default of their examples per second."""
    return Measurement(
        **{"figure": "examples_per_second", **settings},
        key=key,
        title=title,
        variants=(above, below),
        target=target,
        about=about,
    )


def figure(
    key: str, title: str, figure: str, of: Variant, target: float | None, about: str, **settings: Any
) -> Measurement:
    """One variant's own figure."""
    return Measurement(key=key, title=title, figure=figure, variants=(of,), target=target, about=about, **settings)


FIT = "Model.fit is Keras' own, as the published tutorials write it: float images, a pipeline per example."
IN_TURNS: dict[str, Any] = {"rounds": ROUNDS_IN_TURNS}


def on_one_device(network: str) -> tuple[Measurement, ...]:
    """The product's loop beside what a user would write instead; the rounds are shared."""
    loop, bare, fit = (training(kind, network) for kind in ("loop", "bare", "fit"))
    # MobileNetV2 takes too long to compile for the quick mode.
    shared: dict[str, Any] = {**IN_TURNS, "together": network, "in_quick": network == "convnet"}
    words = NETWORKS[network]
    return (
        ratio(
            f"loop-vs-bare-{network}",
            f"`loop` vs hand-tuned bare loop, {words}",
            loop,
            bare,
            0.97,
            "The bare loop has uint8 images on the device, a random permutation of them in each epoch, Keras' Adam and "
            "calls of about a second; it measures, logs and saves nothing. It trains BatchNormalization as Keras "
            "builds it, where `loop` uses TensorFlow's fused operation.",
            **shared,
        ),
        ratio(
            f"loop-vs-fit-{network}",
            f"`loop` vs Model.fit defaults (no strategy), {words}",
            loop,
            fit,
            1.25 if network == "convnet" else 1.02,
            FIT,
            **shared,
        ),
        figure(
            f"real-vs-cached-{network}",
            f"real data vs one cached batch, {words}",
            "real_vs_cached",
            loop,
            0.97,
            "The speed on the prepared data over the speed on one batch that stays where it is, in blocks that take "
            "turns within the process.",
            **shared,
        ),
        figure(
            f"checkpoint-{network}",
            f"checkpoint each epoch, {words}",
            "checkpoint_share",
            loop,
            0.02,
            "Time of one save (variables and Adam's slots, synced to the disk) over that of one epoch's steps: 60,000 "
            "images for the convnet, 2,000 for MobileNetV2.",
            at_least=False,
            **shared,
        ),
    )


def two_workers(network: str, target: float) -> Measurement:
    """What the exchange between two workers costs."""
    return ratio(
        f"multi-worker-vs-independent-{network}",
        f"multi_worker x2 (one core each) vs two independent processes at once, {NETWORKS[network]}",
        workers("multi_worker", "product", network),
        workers("two independent processes", "independent", network),
        target,
        "Each process has one core and the batch of one replica; the independent ones exchange nothing, and their "
        "examples are added up. Two processes that only wait for each other after each step reach 0.90.",
        **IN_TURNS,
        in_quick=False,
    )


def exact_sum(network: str, count: int) -> Measurement:
    """What it costs to add gradients in the order of the replicas."""
    more = f"--workers={count}"
    return ratio(
        f"exact-vs-fast-x{count}-{network}",
        f"`cluster.sum: exact` vs `fast`, multi_worker x{count}, {NETWORKS[network]}",
        workers("exact", "exact", network, more),
        workers("fast", "product", network, more),
        0.95,
        "One replica per worker and the batch of one replica for each; workers beyond the cores share them. `exact` "
        "adds gradients by all-to-all, a sum in order and all-gather, `fast` by TensorFlow's ring.",
        **IN_TURNS,
        in_quick=False,
    )


# Settings by their words in the table.
FREE_OPTIONS = {
    "label smoothing": "loss.label_smoothing=0.1",
    "top_5": "metrics=[top_5]",
    "class weights": "data.class_weights=balanced",
    "clipnorm": "optimizer.clipnorm=1.0",
    "ema": "optimizer.ema=0.99",
    "weight decay": "optimizer.weight_decay=0.01",
}


def with_option(words: str, assignment: str) -> Measurement:
    """What an option of the loop costs that computes next to nothing; the rounds are shared."""
    return ratio(
        f"option-{words.replace(' ', '-')}",
        f"`loop` with {words} vs without, {NETWORKS['convnet']}",
        variant(words, "training", "loop", "--network=convnet", f"--set={assignment}", takes_turns=True),
        training("loop", "convnet"),
        0.97,
        f"`--set {assignment}`. It computes next to nothing: a step's forward and backward pass take 1 GFLOP. Label "
        "smoothing, top_5 and class weights compute on 64 x 10 numbers; clipping, averages and decay make at most "
        "three operations for each of 122,000 weights, less than a thousandth of it. Averages (ema) are a second copy "
        "of the weights, which every step reads and writes, too.",
        **IN_TURNS,
        in_quick=False,
        together="options",
    )


STUDY = variant("rampline run digits, one run", "study")
STUDY_ABOUT = "Wall time of the whole command minus the `wall_seconds` of its run, for 2 and for 200 epochs. "
ONE_PROCESS = product_run("one process, both cores", "single")
MEMORY_ABOUT = "The most resident memory of the process. The role also validates, saves and probes its speed."

MEASUREMENTS = (
    *on_one_device("convnet"),
    *on_one_device("mobilenet"),
    ratio(
        "loop-vs-fit-mirrored-convnet",
        "`loop` mirrored x2 virtual vs Model.fit mirrored x2 virtual, convnet",
        training("loop", "convnet", "--replicas=2"),
        training("fit", "convnet", "--replicas=2"),
        1.5,
        "A global batch of 64 on two virtual devices. Keras 3 cannot make several steps in one call under a strategy.",
        **IN_TURNS,
        in_quick=False,
    ),
    *(with_option(words, assignment) for words, assignment in FREE_OPTIONS.items()),
    two_workers("convnet", 0.92),
    two_workers("mobilenet", 0.95),
    *(exact_sum(network, count) for network in NETWORKS for count in (2, 3, 4)),
    ratio(
        "parameter-server-vs-one-process-convnet",
        f"parameter_server, 2 workers, vs one process on both cores, {NETWORKS['convnet']}",
        product_run("parameter_server, 2 workers", "parameter_server"),
        ONE_PROCESS,
        0.8,
        "Whole runs: a chief, two workers and one parameter server beside a run of one process; the speed is that of "
        "the second epoch.",
        in_quick=False,
        together="runs",
    ),
    ratio(
        "input-pipeline-b64",
        "28x28 batches of 64 with a full deterministic shuffle vs a map per example",
        variant("prepared pipeline", "input_pipeline", "product", "--batch=64"),
        variant("map per example", "input_pipeline", "naive", "--batch=64"),
        10.0,
        "60,000 uint8 images in memory, fetched in a compiled loop that does nothing else. The pipeline that a user "
        "writes is from_tensor_slices, shuffle(60000), map(cast and divide by 255), batch, prefetch. Ours leaves the "
        "cast to the device: it moves a quarter of the bytes.",
    ),
    ratio(
        "input-preparation",
        "JPEG preparation on all cores vs decoding and resizing on one",
        variant("preparation", "input_preparation", "product", environment=WITHOUT_GPU),
        variant("one core, by hand", "input_preparation", "by-hand", environment=ONE_THREAD),
        1.8,
        "JPEGs of 500x375 to 128 pixels, storage in memory. By hand it is decode_jpeg and resize with antialiasing in "
        "a compiled loop, with the files read already. The preparation reduces JPEGs while it decodes them; it also "
        "lists and reads the files twice, hashes what it reads and what it writes, writes, and syncs.",
    ),
    ratio(
        "startup",
        "first step after `rampline run` vs a bare script's first step",
        variant("rampline run", "startup", "rampline"),
        variant("bare script", "startup", "bare"),
        0.8,
        "From the start of the process to the end of the first step: `rampline run digits --only baseline` with its "
        "data prepared and no server running, beside a script that imports Keras and calls `Model.fit` on the same "
        "images.",
        figure="seconds",
        at_least=False,
        in_quick=False,  # its data and databases are made first
    ),
    figure(
        "study-fixed",
        "flow + tracking overhead of a study beyond its run's own wall time: fixed",
        "fixed_seconds",
        STUDY,
        5.0,
        STUDY_ABOUT + "This is the short one, in a RAMPLINE_HOME that has been used: the start of Prefect and MLflow, "
        "the evaluation of the best checkpoint, the probes, the comparison.",
        at_least=False,
        in_quick=False,
        together="study",
    ),
    figure(
        "study-per-epoch",
        "flow + tracking overhead of a study beyond its run's own wall time: per epoch",
        "epoch_share",
        STUDY,
        0.01,
        STUDY_ABOUT + "How much longer what follows the run becomes, per second by which the run does.",
        at_least=False,
        in_quick=False,
        together="study",
    ),
    figure(
        "study-first-in-a-home",
        "flow + tracking overhead of a study beyond its run's own wall time: first in a home",
        "first_seconds",
        STUDY,
        None,
        "A new RAMPLINE_HOME: Prefect and MLflow make their databases, and the digits are prepared.",
        at_least=False,
        in_quick=False,
        together="study",
    ),
    # Memory hardly varies: two rounds, or those in which whole runs are timed.
    ratio(
        "memory-convnet",
        f"peak memory of a role vs the bare script, {NETWORKS['convnet']}",
        ONE_PROCESS,
        training("bare", "convnet"),
        1.2,
        MEMORY_ABOUT,
        figure="peak_mib",
        at_least=False,
        rounds=2,
        in_quick=False,
        together="runs",
    ),
    ratio(
        "memory-mobilenet",
        f"peak memory of a role vs the bare script, {NETWORKS['mobilenet']}",
        product_run("role of a run", "single", "mobilenet-short"),
        training("bare", "mobilenet-short"),
        1.2,
        MEMORY_ABOUT,
        figure="peak_mib",
        at_least=False,
        rounds=2,
        in_quick=False,
    ),
    figure(
        "compare-5000-runs",
        "`rampline compare` with 5,000 runs in MLflow",
        "seconds",
        variant("rampline compare", "compare"),
        3.0,
        "Executions of `digits` in one sqlite store, the latest of which is compared. Most of the time is MLflow's "
        "import.",
        at_least=False,
        rounds=3,
        in_quick=False,
    ),
)
