"""One role that trains a few steps and writes down what it did: `steps_process.py CONFIG_JSON DATASET STEPS OUT`.

Uses Rampline's own parts as a worker does, but tells the loss of every step and all variables at the end.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from rampline.config import from_dict
from rampline.data.dataset import PreparedDataset
from rampline.jobs.tf_config import ALONE, parse_tf_config

config = from_dict(json.loads(sys.argv[1]))
steps, out = int(sys.argv[3]), Path(sys.argv[4])
text = os.environ.get("TF_CONFIG")
task = parse_tf_config(text, config) if text else ALONE

from rampline.training.batch_norm import moving_statistics  # noqa: E402
from rampline.training.state import make_state  # noqa: E402
from rampline.training.strategy import configure_devices, make_strategy  # noqa: E402
from rampline.training.train import make_engine  # noqa: E402

configure_devices(config)
dataset = PreparedDataset.open(Path(sys.argv[2]))
strategy = make_strategy(config)
state = make_state(config, dataset, strategy)
engine = make_engine(config, dataset, strategy, state, task)
losses = np.concatenate([done.losses for done in engine.run_steps(0, steps)])
own_statistics = [np.asarray(v) for v in moving_statistics(state.model)]
engine.average_moving_statistics()
evaluated = engine.evaluate("validation")
devices = [v.value.device for v in state.model.variables]
arrays = {f"variable_{i:03d}": np.asarray(v.value) for i, v in enumerate(state.model.variables)}
arrays |= {f"own_{i:03d}": value for i, value in enumerate(own_statistics)}
arrays |= {f"averaged_{i:03d}": np.asarray(v) for i, v in enumerate(moving_statistics(state.model))}
iterations = np.asarray(state.optimizer.iterations.value)
arrays |= {"losses": losses, "evaluated": evaluated, "devices": np.array(devices)}
arrays |= {"step": np.asarray(state.step), "iterations": iterations}
np.savez(out, allow_pickle=False, **arrays)
engine.finish()
