"""What checkpoints and heartbeats cost a training: `python benchmarks/reliability.py [IMAGES_PER_EPOCH]`.

MobileNetV2 at 128 px with Adam, batch 32, on random images. Steps with and without a heartbeat take turns.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from rampline.config import ModelConfig, OptimizerConfig, RunConfig
from rampline.heartbeat import Heartbeat
from rampline.learning_rate import StepLearningRate
from rampline.models import make_model
from rampline.training.checkpoint import save_checkpoint
from rampline.training.progress import Progress
from rampline.training.state import TrainingState, make_optimizer
from rampline.training.step import make_train_step

BATCH, ROUNDS, STEPS, SAVES = 32, 7, 6, 9


def seconds_of(steps: int, run) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        run()
    return time.perf_counter() - started


def main(images_per_epoch: int) -> None:
    config = RunConfig(model=ModelConfig(name="MobileNetV2"))
    step = tf.Variable(0, dtype=tf.int64)
    model = make_model(config.model, image_shape=(128, 128, 3), classes=2)
    schedule = StepLearningRate(config, images_per_epoch // BATCH, step)
    optimizer = make_optimizer(OptimizerConfig(), schedule)
    optimizer.build(model.trainable_variables)
    state = TrainingState(model=model, optimizer=optimizer, step=step, learning_rate=schedule)
    train_step = tf.function(make_train_step(state, num_replicas_in_sync=1, xla=False))
    images = tf.cast(tf.random.uniform((BATCH, 128, 128, 3), maxval=256, dtype=tf.int32), tf.uint8)
    labels, weights = tf.zeros((BATCH,), tf.int32), tf.ones((BATCH,))
    batch = {"images": images, "labels": labels, "weights": weights, "global_examples": tf.constant(float(BATCH))}
    train_step(batch)

    with tempfile.TemporaryDirectory() as folder:
        bare, beating = [], []
        for turn in range(ROUNDS):
            bare.append(seconds_of(STEPS, lambda: train_step(batch)[0].numpy()) / STEPS)
            beat = Heartbeat(Path(folder) / str(turn), timeout_seconds=60, on_overdue=print)
            beat.start()

            def step_with_beat(beat: Heartbeat = beat) -> None:
                beat.advance("train")
                train_step(batch)[0].numpy()

            # Threads of earlier turns beat on: with each turn the cost of one more is in both figures.
            beating.append(seconds_of(STEPS, step_with_beat) / STEPS)
        checkpoints = Path(folder) / "checkpoints"
        saves = []
        for number in range(1, SAVES + 1):
            saves.append(
                seconds_of(1, lambda n=number: save_checkpoint(checkpoints, Progress(step=n), model, optimizer))
            )
        size = sum(f.stat().st_size for f in next(checkpoints.glob("step-*")).iterdir())

    epoch = statistics.median(bare) * images_per_epoch / BATCH
    save = statistics.median(saves)
    ratios = [b / a for a, b in zip(bare, beating, strict=True)]
    print(f"step {statistics.median(bare) * 1000:.0f} ms, with a heartbeat {statistics.median(beating) * 1000:.0f} ms")
    print(f"ratio of the two in turn: median {statistics.median(ratios):.4f}, {min(ratios):.4f} to {max(ratios):.4f}")
    low, high = min(saves) * 1000, max(saves) * 1000
    print(f"checkpoint of {size / 1e6:.1f} MB: median {save * 1000:.0f} ms, {low:.0f} to {high:.0f}")
    print(f"epoch of {images_per_epoch} images {epoch:.1f} s: one checkpoint each is {save / epoch:.2%} of it")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
