"""Ways of training one network: `python -m benchmarks.variants.training KIND --network convnet|mobilenet`.

    loop     the product's engine on the prepared dataset; also beside one cached batch, and what a checkpoint costs
    fit      Keras' Model.fit with its defaults, from the published tutorials
    bare     a tf.function loop tuned by hand: data on the device, many steps in one call

Prints examples per second: the median of three blocks, or of each that it is asked for with `--turns`. `--replicas 2`
is MirroredStrategy on virtual devices, for loop and fit; `--set KEY=VALUE` is a setting of the run, for loop.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks.variants.turns import Turns, add_option
from benchmarks.variants.work import WORKS, Work
from rampline.config import ClusterConfig, RunConfig
from rampline.jobs.roles import local_tasks, role_environment

KINDS = ("loop", "fit", "bare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--network", choices=WORKS, required=True)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_option(parser)
    options = parser.parse_args()
    turns = Turns(options)
    train(options.kind, WORKS[options.network], options.replicas, turns, options.set)
    turns.end()


def train(kind: str, work: Work, replicas: int, turns: Turns, settings: Sequence[str]) -> None:
    """In one way, as long as blocks are wanted."""
    if kind == "fit":
        from benchmarks.variants.model_fit import train_with_fit

        return train_with_fit(work, replicas, turns)
    if kind == "bare":
        from benchmarks.variants.bare_loop import train_bare

        return train_bare(work, turns)
    # As the launcher starts a role; TensorFlow reads it when it is imported.
    os.environ.update(role_threads(replicas))
    from benchmarks.variants.product_loop import train_in_loop

    return train_in_loop(work, replicas, turns, settings)


def role_threads(replicas: int) -> dict[str, str]:
    """The threads that a role with so many virtual devices gets."""
    config = RunConfig(
        strategy="mirrored" if replicas > 1 else "single",
        cluster=ClusterConfig(replicas=replicas, virtual_devices=replicas if replicas > 1 else 0),
    )
    environment = role_environment(local_tasks(config)[0], config)
    return {name: value for name, value in environment.items() if "THREADS" in name}


if __name__ == "__main__":
    main()
