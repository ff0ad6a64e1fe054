"""One role that notes what its replicas draw: `draws_process.py CONFIG_JSON DATASET OUT`.

Trains 4 steps; then the last two again, in a new state, from a checkpoint after the second. Writes (steps, local
replicas, 64) masks.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from rampline.config import from_dict
from rampline.data.dataset import PreparedDataset
from rampline.jobs.tf_config import ALONE, parse_tf_config

STEPS, SAVED = 4, 2

config = from_dict(json.loads(sys.argv[1]))
text = os.environ.get("TF_CONFIG")
task = parse_tf_config(text, config) if text else ALONE


from rampline.record.checkpoints import Progress  # noqa: E402
from rampline.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from rampline.training.state import make_state  # noqa: E402
from rampline.training.strategy import configure_devices, make_strategy  # noqa: E402
from rampline.training.train import make_engine  # noqa: E402

configure_devices(config)
dataset, strategy = PreparedDataset.open(Path(sys.argv[2])), make_strategy(config)
folder = Path(sys.argv[3]).with_suffix(".checkpoints")


def train(first: int, last: int) -> np.ndarray:
    """Masks of the steps from `first` on, with a checkpoint before step SAVED."""
    state = make_state(config, dataset, strategy)
    if first:
        load_checkpoint(folder / f"step-{first:08d}", state.model, state.optimizer)
        state.step.assign(first)
    engine = make_engine(config, dataset, strategy, state, task)
    (kept,) = [v.value for v in state.model.non_trainable_variables if v.name == "kept"]
    masks = []
    for step in range(first, last):
        if step == SAVED and not first:
            save_checkpoint(folder, Progress(step=step), state.model, state.optimizer)
        list(engine.run_steps(step, 1))
        masks.append([np.asarray(copy) for copy in strategy.experimental_local_results(kept)])
    engine.finish()
    return np.array(masks)


np.savez(sys.argv[3], allow_pickle=False, masks=train(0, STEPS), again=train(SAVED, STEPS))
