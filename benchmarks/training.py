"""Training on one machine: the product's loop beside what a user would otherwise write.

The convnet is that of fashion_mnist (28 x 28 x 1, global batch 64), MobileNetV2 that of cats_vs_dogs
(128 x 128 x 3, batch 32); images are random.
"""

from __future__ import annotations

from benchmarks.measurement import ROUNDS_IN_TURNS, Contender, Measurement

MODULE = "benchmarks.contenders.training"
FIT = (
    "Model.fit is Keras' own, as a user writes it from the published tutorials: float images, "
    "a per-example pipeline, no "
    "progress bar."
)


TITLES = {"convnet": "convnet 28x28 b64", "mobilenet": "MobileNetV2 128 px b32"}


def contender(kind: str, network: str, *more: str) -> Contender:
    """One way of training that network."""
    names = {"fit": "Model.fit", "bare": "bare loop"}
    arguments = (MODULE, kind, f"--network={network}", *more)
    return Contender(name=names.get(kind, kind), arguments=arguments, takes_turns=True)


def ratio(key: str, title: str, kinds: tuple[str, str], network: str, target: float, about: str) -> Measurement:
    """One of the table's ratios on one device; those of a network share rounds and contenders."""
    pair = tuple(contender(kind, network) for kind in kinds)
    return Measurement(
        key=key,
        title=title,
        figure="examples_per_second",
        contenders=pair,
        numerator=pair[0].name,
        denominator=pair[1].name,
        target=target,
        # In the quick mode a MobileNetV2 takes too long to compile.
        in_quick=network == "convnet",
        rounds=ROUNDS_IN_TURNS,
        about=about,
        together=network,
    )


MEASUREMENTS = (
    ratio(
        "loop-vs-bare-convnet",
        "`loop` vs hand-tuned bare loop, convnet 28x28 b64",
        ("loop", "bare"),
        "convnet",
        0.97,
        "The bare loop has uint8 images on the device, a random permutation of them in each epoch, Keras' Adam and "
        "calls of about a second; it measures, logs and saves nothing.",
    ),
    ratio(
        "loop-vs-bare-mobilenet",
        "`loop` vs hand-tuned bare loop, MobileNetV2 128 px b32",
        ("loop", "bare"),
        "mobilenet",
        0.97,
        "The same loops with MobileNetV2. The bare loop trains the network as Keras builds it; `loop` trains its 52 "
        "BatchNormalization layers by TensorFlow's fused operation, which Keras 3 does not use.",
    ),
    ratio(
        "loop-vs-fit-convnet",
        "`loop` vs Model.fit defaults (no strategy), convnet 28x28 b64",
        ("loop", "fit"),
        "convnet",
        1.25,
        FIT,
    ),
    ratio(
        "loop-vs-fit-mobilenet",
        "`loop` vs Model.fit defaults (no strategy), MobileNetV2 128 px b32",
        ("loop", "fit"),
        "mobilenet",
        1.02,
        FIT,
    ),
    Measurement(
        key="loop-vs-fit-mirrored-convnet",
        title="`loop` mirrored x2 virtual vs Model.fit mirrored x2 virtual, convnet",
        figure="examples_per_second",
        contenders=(contender("loop", "convnet", "--replicas=2"), contender("fit", "convnet", "--replicas=2")),
        numerator="loop",
        denominator="Model.fit",
        target=1.5,
        in_quick=False,
        rounds=ROUNDS_IN_TURNS,
        about="Both have a global batch of 64 on two virtual devices of one processor. Keras 3 cannot make several "
        "steps in one call under a strategy.",
    ),
    *(
        Measurement(
            key=f"real-vs-cached-{network}",
            title=f"real data vs one cached batch, {words}",
            figure="real_vs_cached",
            contenders=(contender("loop", network),),
            numerator="loop",
            target=0.97,
            in_quick=network == "convnet",
            rounds=ROUNDS_IN_TURNS,
            about="Training on the prepared data over training on one batch that stays where it is, in blocks of steps "
            "that take turns within each process.",
            together=network,
        )
        for network, words in TITLES.items()
    ),
    *(
        Measurement(
            key=f"checkpoint-{network}",
            title=f"checkpoint each epoch, {words}",
            figure="checkpoint_share",
            contenders=(contender("loop", network),),
            numerator="loop",
            target=0.02,
            at_least=False,
            in_quick=network == "convnet",
            about="Time of one save (variables and Adam's slots, synced to the disk) over that of one epoch's steps: "
            "60,000 images for the convnet, 2,000 for MobileNetV2.",
            together=network,
        )
        for network, words in TITLES.items()
    ),
)
