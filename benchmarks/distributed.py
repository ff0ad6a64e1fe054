"""Training in several processes: two workers with one core each, parameter servers, PyTorch."""

from __future__ import annotations

from benchmarks.measurement import ROUNDS_IN_TURNS, Contender, Measurement

TITLES = {"convnet": "convnet 28x28 b64", "mobilenet": "MobileNetV2 128 px b32"}
WORKERS = "benchmarks.contenders.workers"
RUN = "benchmarks.contenders.product_run"
INDEPENDENCE_TARGETS = {"convnet": 0.92, "mobilenet": 0.95}


def workers(name: str, kind: str, network: str) -> Contender:
    """Two processes on one core each."""
    return Contender(name=name, arguments=(WORKERS, kind, f"--network={network}"), takes_turns=True)


def versus(
    network: str, key: str, title: str, other: Contender, about: str, target: float | None = None
) -> Measurement:
    """The product's multi_worker beside another pair of processes; those of a network share rounds."""
    product = workers("multi_worker", "product", network)
    return Measurement(
        key=f"multi-worker-vs-{key}-{network}",
        title=f"{title}, {TITLES[network]}",
        figure="examples_per_second",
        contenders=(product, other),
        numerator=product.name,
        denominator=other.name,
        target=target,
        in_quick=False,
        rounds=ROUNDS_IN_TURNS,
        about=about,
        together=f"workers {network}",
    )


def others(network: str) -> tuple[Measurement, ...]:
    """Nothing exchanged at all, nothing but the beat, the strategy without the product, and another framework."""
    return (
        versus(
            network,
            "independent",
            "multi_worker x2 (one core each) vs two independent processes at once",
            workers("two independent processes", "independent", network),
            "Each process has one core and the batch of one replica; the independent ones exchange nothing, and the "
            "examples of both are added up.",
            INDEPENDENCE_TARGETS[network],
        ),
        versus(
            network,
            "plain",
            "multi_worker x2 vs a plain MultiWorkerMirrored loop",
            workers("plain loop", "plain", network),
            "The plain loop is that of TensorFlow's tutorial: strategy.run in a tf.function, one call for each step.",
        ),
        versus(
            network,
            "in-step",
            "multi_worker x2 vs two processes that only wait for each other after each step",
            workers("two processes in step", "in_step", network),
            "The independent processes again, with a call and a byte to and fro for each step: what keeping step "
            "costs by itself.",
        ),
        versus(
            network,
            "pytorch",
            "multi_worker x2 vs PyTorch DDP x2 (gloo)",
            Contender(
                name="PyTorch DDP",
                arguments=("benchmarks.contenders.pytorch", f"--network={network}"),
                takes_turns=True,
            ),
            "The same network in plain PyTorch (eager, channels last, torch.optim.Adam), one process and one thread "
            "on each core, uint8 images in memory.",
        ),
    )


def product_run(strategy: str) -> Contender:
    """A whole run of the convnet."""
    names = {"parameter_server": "parameter_server, 2 workers", "single": "one process, both cores"}
    return Contender(name=names[strategy], arguments=(RUN, strategy, "--network=convnet"))


def parameter_server() -> Measurement:
    """Two workers and their servers, as whole runs."""
    pair = (product_run("parameter_server"), product_run("single"))
    return Measurement(
        key="parameter-server-vs-one-process-convnet",
        title=f"parameter_server, 2 workers, examples/s vs one process on both cores, {TITLES['convnet']}",
        figure="examples_per_second",
        contenders=pair,
        numerator=pair[0].name,
        denominator=pair[1].name,
        target=0.8,
        in_quick=False,
        about="Whole runs of the product, their roles started as `rampline run` starts them: a chief, two workers and "
        "one parameter server beside a run of one process; the speed is that of the second epoch.",
        together="runs",
    )


MEASUREMENTS = (
    *(measurement for network in TITLES for measurement in others(network)),
    parameter_server(),
)
