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


def main() -> None:
    """Run the role that TF_CONFIG names."""
    from rampline.cluster.tf_config import parse_tf_config
    from rampline.config import from_dict
    from rampline.data.dataset import PreparedDataset

    config, folder = from_dict(json.loads(sys.argv[1])), Path(sys.argv[3])
    task = parse_tf_config(os.environ["TF_CONFIG"], config)

    from rampline.training.checkpoint import load_checkpoint, restore_newest, save_checkpoint
    from rampline.training.progress import Progress
    from rampline.training.run import make_engine
    from rampline.training.state import make_state
    from rampline.training.strategy import configure_devices, make_strategy

    configure_devices(config)
    dataset = PreparedDataset.open(Path(sys.argv[2]))
    strategy = make_strategy(config)
    arrays: dict[str, np.ndarray] = {}

    def make():
        state = make_state(config, dataset, strategy)
        return state, make_engine(config, dataset, strategy, state, task)

    def note(moment: str, state) -> None:
        for i, variable in enumerate([*state.model.variables, *state.optimizer.variables]):
            value = variable.value if isinstance(variable, keras.Variable) else variable
            for replica, local in enumerate(strategy.experimental_local_results(value)):
                arrays[f"{moment}/{i:03d}/{replica}"] = np.asarray(local)

    state, engine = make()
    note("first", state)
    list(engine.run_steps(0, STEPS))
    note("before", state)
    statistics = engine.read_statistics()
    assert statistics is not None
    arrays["gathered"] = statistics
    if task.worker_number == 0:
        progress = Progress(step=STEPS)
        save_checkpoint(folder, progress, state.model, state.optimizer, replica_statistics=statistics)
    note("saved", state)
    engine.finish()
    list(engine.run_steps(STEPS, STEPS))
    note("trained", state)

    state, engine = make()
    restored = restore_newest(folder, state.model, state.optimizer, warn=print)
    assert restored is not None
    assert restored.replica_statistics is not None
    state.step.assign(restored.progress.step)
    note("averaged", state)
    engine.write_statistics(restored.replica_statistics)
    note("restored", state)
    again = engine.read_statistics()
    assert again is not None
    arrays["gathered again"] = again
    list(engine.run_steps(STEPS, STEPS))
    note("trained again", state)

    load_checkpoint(restored.path, state.model, state.optimizer)
    engine.write_statistics(np.concatenate([statistics, statistics[:1]]))  # of another number of replicas
    note("rescaled", state)
    engine.average_moving_statistics()
    arrays["names"] = np.array([variable.path for variable in state.model.variables])
    np.savez(folder / f"{task.name}.npz", allow_pickle=False, **arrays)
    engine.finish()


if __name__ == "__main__":
    main()
