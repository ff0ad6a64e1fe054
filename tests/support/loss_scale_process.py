"""One role of a run in mixed_float16 whose last replica overflows: `loss_scale_process.py CONFIG DATASET OUT`.

The scale doubles after 4 steps; at step 6 the loss of the last replica alone is infinite. Writes the scale, the
count of updates and the weights of all replicas of this process after every step.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from rampline.config import from_dict
from rampline.data.dataset import PreparedDataset
from rampline.jobs.tf_config import ALONE, parse_tf_config

# Far below where a loss of this network overflows.
FIRST_SCALE = 2.0**10
STEPS, BAD_STEP, GROWTH_STEPS = 19, 6, 4

config = from_dict(json.loads(sys.argv[1]))
text = os.environ.get("TF_CONFIG")
task = parse_tf_config(text, config) if text else ALONE

import tensorflow as tf  # noqa: E402

from rampline.training.state import make_state  # noqa: E402
from rampline.training.strategy import configure_devices, make_strategy  # noqa: E402
from rampline.training.train import make_engine  # noqa: E402

configure_devices(config)
dataset, strategy = PreparedDataset.open(Path(sys.argv[2])), make_strategy(config)
state = make_state(config, dataset, strategy)
state.optimizer.dynamic_scale.assign(FIRST_SCALE)
state.optimizer.dynamic_growth_steps = GROWTH_STEPS
scale_loss, last = state.optimizer.scale_loss, strategy.num_replicas_in_sync - 1


def overflow(loss: tf.Tensor, **scale: tf.Tensor) -> tf.Tensor:
    """The scaled loss; infinite in the last replica at the step."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    bad = tf.logical_and(tf.equal(replica, last), tf.equal(state.step, BAD_STEP))
    return scale_loss(loss, **scale) * tf.where(bad, np.inf, 1.0)


state.optimizer.scale_loss = overflow
engine = make_engine(config, dataset, strategy, state, task)
noted: dict[str, list] = {name: [] for name in ("losses", "scale", "updates", "weights")}


def note(loss: float) -> None:
    """What the replicas of this process have after a step of that loss."""
    noted["losses"].append(loss)
    for name, variable in {"scale": state.optimizer.dynamic_scale, "updates": state.optimizer.iterations}.items():
        noted[name].append([np.asarray(v) for v in strategy.experimental_local_results(variable.value)])
    copies = zip(*[strategy.experimental_local_results(v.value) for v in state.model.trainable_variables], strict=True)
    noted["weights"].append([np.concatenate([np.ravel(v) for v in copy]) for copy in copies])


for step in range(STEPS):
    (done,) = engine.run_steps(step, 1)
    if config.engine == "fit":
        state.step.assign_add(1)  # Model.fit counts no steps of ours
    note(done.losses[0])
np.savez(sys.argv[3], allow_pickle=False, **{name: np.array(values) for name, values in noted.items()})
engine.finish()
