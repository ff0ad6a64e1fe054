"""Micro-batches: the same update as the whole batch at once, whatever the strategy, in less memory."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import keras
import numpy as np
import pytest
import tensorflow as tf
from role_functions import RunRoles, assert_same_arrays, train_on, train_steps
from runs import MakeRun, make_config

from rampline.config import BatchConfig, ClusterConfig, OptimizerConfig, ParityConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import ConfigError, RunFailed
from rampline.jobs.supervisor import supervise
from rampline.parity.check import check_parity
from rampline.record.attempts import read_accumulate
from rampline.training.objective import EXAMPLES, Objective, make_cross_entropy
from rampline.training.optimizers import make_optimizer
from rampline.training.state import TrainingState
from rampline.training.step import make_loss_gradients


def in_parts(config: RunConfig, accumulate: int | str) -> RunConfig:
    return dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate=accumulate))


@pytest.fixture
def double() -> Iterator[None]:
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)


class WithUnused(keras.layers.Dense):
    """Has a weight that it does not use."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.unused = self.add_weight(shape=(2,), name="unused")


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 7, 100])
@pytest.mark.parametrize("rows", [7, 1])
def test_gradients_and_sums_are_those_of_the_whole_batch(double: None, micro_batch: int, rows: int) -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4, 4, 1), dtype="uint8")
    x = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")(keras.layers.Flatten()(inputs))
    model = keras.Model(inputs, WithUnused(3)(x))
    optimizer = make_optimizer(OptimizerConfig(name="sgd"), 0.1)
    optimizer.build(model.trainable_variables)
    state = TrainingState(
        model=model,
        optimizer=optimizer,
        step=tf.Variable(0),
        learning_rate=lambda step: 0.1,  # type: ignore[arg-type]
        objective=Objective(make_cross_entropy(0.0)),
    )
    rng = np.random.default_rng(0)
    batch = {
        "images": tf.constant(rng.integers(0, 255, (rows, 4, 4, 1), np.uint8)),
        "labels": tf.constant(rng.integers(0, 3, rows), tf.int32),
        "weights": tf.constant([1.0] * (rows - 1) + [0.0 if rows > 1 else 1.0]),
        "global_examples": tf.constant(9.0),
    }
    whole, in_micro_batches = (
        make_loss_gradients(state, xla=False, micro_batch=size)(batch) for size in (None, micro_batch)
    )
    assert in_micro_batches[0][-1] is None, "what has no gradient has none, and is not updated by zeros"
    for one, other in zip([*whole[0][:-1], whole[1]], [*in_micro_batches[0][:-1], in_micro_batches[1]], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "config, accumulate, message",
    [
        (dataclasses.replace(make_config("single"), engine="fit"), 2, "1 with engine=fit"),
        (make_config("mirrored", replicas=2, virtual_devices=2), 15, "at most 14, the examples of a replica"),
        (dataclasses.replace(make_config("single"), xla=True), "auto", "false with batch.accumulate=auto"),
        (make_config("single"), 0, "batch.accumulate"),
    ],
)
def test_what_cannot_be_accumulated_is_refused(config: RunConfig, accumulate: int | str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        in_parts(config, accumulate)


def test_the_parts_of_a_share() -> None:
    config = RunConfig(
        strategy="mirrored", batch=BatchConfig(size=30), cluster=ClusterConfig(replicas=4, virtual_devices=4)
    )
    assert config.micro_batch_size is None
    assert in_parts(config, "auto").micro_batch_size is None, "the attempt decides"
    assert [in_parts(config, parts).micro_batch_size for parts in (2, 3, 8)] == [4, 3, 1]


@pytest.mark.long
def test_a_resumed_training_has_the_bits_of_the_undisturbed_one(run_roles: RunRoles, tmp_path: Path) -> None:
    """Shares of 10 and 11 examples are 10 and 11 micro-batches: Dropout draws more often in one replica."""
    mirrored = make_config("mirrored", model="small_models:with_all_state", batch=21, replicas=2, virtual_devices=2)
    config, stop, end = in_parts(mirrored, 11), 2, 5
    (whole,) = run_roles(train_on, config, tmp_path / "whole", end)
    parts = [run_roles(train_on, config, tmp_path / "parts", until)[0] for until in (stop, end)]
    np.testing.assert_array_equal(np.concatenate([part["losses"] for part in parts]), whole["losses"])
    found, wanted = (np.load(tmp_path / name / f"step-{end:08d}" / "variables.npz") for name in ("parts", "whole"))
    assert_same_arrays(found, wanted)


@pytest.mark.parametrize(
    "config",
    [
        make_config("single", model="small_models:large"),
        pytest.param(
            make_config("multi_worker", model="small_models:large", batch=56, workers=2, sum="exact"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            make_config("parameter_server", model="small_models:large", workers=1, parameter_servers=1),
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda config: config.strategy,
)
def test_validation_needs_no_more_memory_than_a_micro_batch(
    run_roles: RunRoles, digits: PreparedDataset, config: RunConfig
) -> None:
    """There is memory for 14 examples at once, and a replica's share has 28."""
    for arrays in run_roles(train_steps, in_parts(config, 2), 1):
        assert arrays["evaluated"][EXAMPLES] == digits.splits["validation"] > 14


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        make_config("mirrored", model="small_models:smooth", replicas=3, virtual_devices=3),
        pytest.param(make_config("multi_worker", model="convnet", workers=2), marks=pytest.mark.long),
        pytest.param(
            make_config("multi_worker", model="small_models:smooth", workers=2, sum="exact"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            make_config("parameter_server", model="small_models:smooth", workers=1, parameter_servers=1),
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda config: f"{config.strategy}-{config.cluster.sum}",
)
def test_replicas_that_accumulate_train_as_one(make_run: MakeRun, config: RunConfig) -> None:
    result = check_parity(make_run(in_parts(dataclasses.replace(config, parity=ParityConfig()), 3)), log=print)
    assert (result.status, result.reason) == ("pass", "")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["single", pytest.param("multi_worker", marks=pytest.mark.long)])
def test_out_of_memory_doubles_the_micro_batches(make_run: MakeRun, strategy: str) -> None:
    workers = {"workers": 2} if strategy == "multi_worker" else {}
    config = make_config(strategy, model="small_models:large", batch=28 * (2 if workers else 1), **workers)
    directory, lines = make_run(in_parts(dataclasses.replace(config, epochs=1), "auto")), list[str]()
    supervise(directory, on_event=lambda event: None, log=lines.append)
    # 28 examples of a replica, in parts of 14.
    (line,) = [line for line in lines if "going on" in line]
    assert "has no memory: ResourceExhaustedError: " in line
    assert line.endswith(": going on from step 0 with 2 micro-batches a step")
    assert read_accumulate(directory.attempts_file) == 2, "the next command begins with them"
    assert [event.get("micro_batch_size") for event in directory.read_events("started")] == [None, 14]


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "advice"),
    [
        ("loop", "batch.accumulate=auto or a smaller batch.size needs less"),
        ("fit", "a smaller batch.size needs less"),
    ],
)
def test_out_of_memory_with_one_micro_batch_says_what_needs_less(
    make_run: MakeRun, engine: Literal["loop", "fit"], advice: str
) -> None:
    config = make_config("single", model="small_models:large", batch=28, max_restarts=0)
    run = make_run(dataclasses.replace(config, epochs=1, engine=engine, steps_per_call="auto"))
    with pytest.raises(RunFailed, match=rf"has no memory: ResourceExhaustedError: .*; {advice} \(log: "):
        supervise(run, on_event=print, log=print)
