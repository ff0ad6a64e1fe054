"""One role that saves, restores and compares: `statistics_process.py CONFIG_JSON DATASET FOLDER`.

Trains 3 steps, saves, trains 3 more; then restores into a new state and trains the same 3 again. Writes all values of
all replicas of this process at each point to FOLDER/ROLE-INDEX.npz.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np

STEPS = 3


def with_dropout(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A convolution with BatchNormalization and Dropout."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2)(x))
    x = keras.layers.Dropout(0.3)(keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


class Role:
    """The role that TF_CONFIG names: its states, and what it notes of all its replicas."""

    def __init__(self, config_json: str, dataset: str, folder: str) -> None:
        from rampline.config import from_dict
        from rampline.data.dataset import PreparedDataset
        from rampline.jobs.tf_config import parse_tf_config
        from rampline.training.strategy import configure_devices, make_strategy

        self.config, self.folder = from_dict(json.loads(config_json)), Path(folder)
        self.task = parse_tf_config(os.environ["TF_CONFIG"], self.config)
        configure_devices(self.config)
        self.dataset = PreparedDataset.open(Path(dataset))
        self.strategy = make_strategy(self.config)
        self.arrays: dict[str, np.ndarray] = {}

    def make(self):
        """A new state, and an engine that trains it."""
        from rampline.training.state import make_state
        from rampline.training.train import make_engine

        state = make_state(self.config, self.dataset, self.strategy)
        return state, make_engine(self.config, self.dataset, self.strategy, state, self.task)

    def note(self, moment: str, state) -> None:
        """Keep every variable of every replica."""
        for i, variable in enumerate([*state.model.variables, *state.optimizer.variables]):
            value = variable.value if isinstance(variable, keras.Variable) else variable
            for replica, local in enumerate(self.strategy.experimental_local_results(value)):
                self.arrays[f"{moment}/{i:03d}/{replica}"] = np.asarray(local)

    def note_statistics(self, name: str, engine) -> np.ndarray:
        """Keep what the engine reads of all replicas."""
        statistics = engine.read_statistics()
        assert statistics is not None
        self.arrays[name] = statistics
        return statistics


def train_and_save(role: Role) -> np.ndarray:
    """3 steps, a checkpoint, 3 more steps; returns the statistics that were saved."""
    from rampline.record.checkpoints import Progress
    from rampline.training.checkpoint import save_checkpoint

    state, engine = role.make()
    role.note("first", state)
    list(engine.run_steps(0, STEPS))
    role.note("before", state)
    statistics = role.note_statistics("gathered", engine)
    if role.task.worker_number == 0:
        progress = Progress(step=STEPS)
        save_checkpoint(role.folder, progress, state.model, state.optimizer, replica_statistics=statistics)
    role.note("saved", state)
    engine.finish()
    list(engine.run_steps(STEPS, STEPS))
    role.note("trained", state)
    return statistics


def restore_and_train(role: Role, statistics: np.ndarray) -> None:
    """The last 3 steps again, from the checkpoint; then statistics of another number of replicas."""
    from rampline.training.checkpoint import load_checkpoint, restore_newest

    state, engine = role.make()
    restored = restore_newest(role.folder, state.model, state.optimizer, warn=print)
    assert restored is not None
    assert restored.replica_statistics is not None
    state.step.assign(restored.progress.step)
    role.note("averaged", state)
    engine.write_statistics(restored.replica_statistics)
    role.note("restored", state)
    role.note_statistics("gathered again", engine)
    list(engine.run_steps(STEPS, STEPS))
    role.note("trained again", state)
    load_checkpoint(restored.path, state.model, state.optimizer)
    engine.write_statistics(np.concatenate([statistics, statistics[:1]]))
    role.note("rescaled", state)
    engine.average_moving_statistics()
    role.arrays["names"] = np.array([variable.path for variable in state.model.variables])
    np.savez(role.folder / f"{role.task.name}.npz", allow_pickle=False, **role.arrays)
    engine.finish()


if __name__ == "__main__":
    this = Role(*sys.argv[1:4])
    restore_and_train(this, train_and_save(this))
