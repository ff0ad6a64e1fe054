"""The parity check of mirrored replicas with errors put in: `parity_process.py CONFIG_JSON DATASET CASE...`.

Prints a JSON object per case, on a line of its own: the result of the check, or whether replicas skip a step together.
"""

import dataclasses
import json
import sys
from pathlib import Path

from rampline.config import from_dict
from rampline.data.dataset import PreparedDataset

config = from_dict(json.loads(sys.argv[1]))

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import rampline.training.state as training_state  # noqa: E402
import rampline.training.synchronous as synchronous_steps  # noqa: E402
from rampline.parity.steps import (  # noqa: E402
    ALONE,
    check_steps,
    skips_together,
)
from rampline.training.optimizers import LossScaleOptimizer  # noqa: E402
from rampline.training.step import make_train_step  # noqa: E402
from rampline.training.strategy import configure_devices, make_strategy  # noqa: E402

configure_devices(config)
dataset, strategy = PreparedDataset.open(Path(sys.argv[2])), make_strategy(config)


def per_replica_count(state, **settings):
    """Divides by the examples of the replica's own share and averages: right only where all shares are equal."""
    step, replicas = make_train_step(state, **settings), settings["num_replicas_in_sync"]
    return lambda batch: step({**batch, "global_examples": tf.reduce_sum(batch["weights"]) * replicas})


def summed(state, **settings):
    """Sums the replicas' mean gradients instead of averaging them."""
    step, replicas = make_train_step(state, **settings), settings["num_replicas_in_sync"]
    return lambda batch: step({**batch, "global_examples": batch["global_examples"] / replicas})


def full_batch(state, **settings):
    """Divides by the global batch size in a partial last batch too, as `compute_average_loss` does."""
    step = make_train_step(state, **settings)
    wrong = tf.constant(config.global_batch_size, tf.float32)
    is_distributed = settings["num_replicas_in_sync"] > 1
    return lambda batch: step({**batch, "global_examples": wrong} if is_distributed else batch)


CASES = {
    "right": make_train_step,
    "per_replica_count": per_replica_count,
    "summed": summed,
    "full_batch": full_batch,
}

VERDICTS = {"one verdict": LossScaleOptimizer, "the first's": keras.mixed_precision.LossScaleOptimizer}

for case in sys.argv[3:]:
    if case in VERDICTS:
        training_state.LossScaleOptimizer = VERDICTS[case]
        print(json.dumps({"case": case, "skips": skips_together(config, ALONE, dataset, strategy)}), flush=True)  # noqa: T201
        continue
    synchronous_steps.make_train_step = CASES[case]
    print(json.dumps({"case": case, **dataclasses.asdict(check_steps(config, ALONE, dataset, strategy))}), flush=True)  # noqa: T201
