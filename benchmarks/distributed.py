"""Training in several processes: two workers with one core each, parameter servers, PyTorch."""

from __future__ import annotations

from benchmarks.measurement import Contender, Measurement

TITLES = {"convnet": "convnet 28x28 b64", "mobilenet": "MobileNetV2 128 px b32"}
WORKERS = "benchmarks.contenders.workers"
RUN = "benchmarks.contenders.product_run"
INDEPENDENCE_TARGETS = {"convnet": 0.92, "mobilenet": 0.95}


def workers(name: str, kind: str, network: str) -> Contender:
    """Two processes on one core each."""
    return Contender(name=name, arguments=(WORKERS, kind, f"--network={network}"))


def versus(network: str, key: str, title: str, other: Contender, target: float | None, about: str) -> Measurement:
    """The product's multi_worker beside another pair of processes; those of a network share rounds."""
    product = workers("multi_worker", "product", network)
    return Measurement(
        key=f"{key}-{network}",
        title=f"{title}, {TITLES[network]}",
        figure="examples_per_second",
        contenders=(product, other),
        numerator=product.name,
        denominator=other.name,
        target=target,
        in_quick=False,
        about=about,
        together=f"workers {network}",
    )


def versus_independent(network: str) -> Measurement:
    """What the all-reduce and the waiting for one another cost."""
    return versus(
        network,
        "multi-worker-vs-independent",
        "multi_worker x2 (one core each) vs two independent processes at once",
        workers("two independent processes", "independent", network),
        INDEPENDENCE_TARGETS[network],
        "Each process has one core and the batch of one replica; the independent ones exchange nothing, and the "
        "examples of both are added up.",
    )


def versus_plain(network: str) -> Measurement:
    """The strategy itself without the product."""
    return versus(
        network,
        "multi-worker-vs-plain",
        "multi_worker x2 vs a plain MultiWorkerMirrored loop",
        workers("plain loop", "plain", network),
        None,
        "The plain loop is that of TensorFlow's tutorial: strategy.run in a tf.function, one call for each step.",
    )


def versus_pytorch(network: str) -> Measurement:
    """Another framework."""
    return versus(
        network,
        "multi-worker-vs-pytorch",
        "multi_worker x2 vs PyTorch DDP x2 (gloo)",
        Contender(name="PyTorch DDP", arguments=("benchmarks.contenders.pytorch", f"--network={network}")),
        None,
        "The same network in plain PyTorch (eager, channels last, torch.optim.Adam), one process and one thread "
        "on each core, uint8 images in memory.",
    )


def parameter_server(network: str, words: str) -> Measurement:
    """Two workers and their servers, as whole runs."""
    names = {"parameter_server": "parameter_server, 2 workers", "single": "one process, both cores"}
    pair = tuple(
        Contender(name=name, arguments=(RUN, strategy, f"--network={network}")) for strategy, name in names.items()
    )
    return Measurement(
        key=f"parameter-server-vs-one-process-{network.removesuffix('-short')}",
        title=f"parameter_server, 2 workers, examples/s vs one process on both cores, {words}",
        figure="examples_per_second",
        contenders=pair,
        numerator=pair[0].name,
        denominator=pair[1].name,
        target=0.8,
        in_quick=False,
        about="Whole runs of the product, their roles started as `rampline run` starts them: a chief, two workers and "
        "one parameter server beside a run of one process; the speed is the median over the epochs after the first.",
    )


MEASUREMENTS = (
    *(versus_independent(network) for network in TITLES),
    *(versus_plain(network) for network in TITLES),
    parameter_server("convnet", TITLES["convnet"]),
    *(versus_pytorch(network) for network in TITLES),
)
