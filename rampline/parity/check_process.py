"""The parity check inside a role process: the run's strategy, then one replica, on the same global batches.

It computes in float64, so that the order of a sum (1e-16) and an error (1e-9 and more) are told apart. What
legitimately differs between replicas is taken out of the model first: batch statistics and random draws.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from rampline.config import BatchConfig, ClusterConfig, LearningRateConfig, RunConfig, StopConfig, from_dict
from rampline.data.compiled import compiled
from rampline.data.dataset import PreparedDataset
from rampline.jobs.tf_config import ALONE, Task
from rampline.parity.check import RESULT, Neutralised, ParityResult, parity_notes
from rampline.pipeline.examples import open_examples
from rampline.record.events import finite
from rampline.record.run_directory import RunDirectory
from rampline.training.role import leave_with, take_part
from rampline.training.state import TrainingState, make_state
from rampline.training.train import make_engine

# Whose statistics BatchNormalization uses in the check.
FIXED_EXAMPLES = 32
# Of the check that a step is skipped, and the share of rounding in a mean of equal values.
SKIP_STEPS, EQUAL = 3, 1e-6
BATCH_STATISTICS = "each replica normalises with its own share of the batch: all use the statistics of one fixed batch"
RANDOM_DRAWS = "each replica draws its own random numbers: it runs as in evaluation"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A few steps under one strategy.

    Attributes:
        losses: (steps,) mean loss of each global batch.
        names: of the floating-point variables, the optimizer's slots included.
        values: those variables after the steps, as the first local replica has them.
        spread: (variables,) how far the replicas' copies are from their mean, summed over all replicas.
        precision: `float64`, or `float32` where a trainable variable is not.
        neutralised: what `neutralise` has changed.
        always_random: layers that it could not change.
    """

    losses: np.ndarray
    names: list[str]
    values: list[np.ndarray]
    spread: np.ndarray
    precision: str
    neutralised: tuple[Neutralised, ...]
    always_random: list[str]


def first_step_of(config: RunConfig, train_examples: int) -> int:
    """0-based step the check begins with: the end of the first epoch, with its partial batch, is in the middle."""
    return max(0, config.steps_per_epoch(train_examples) - config.parity.steps // 2)


def train_steps(
    run: RunConfig,
    config: RunConfig,
    task: Task,
    dataset: PreparedDataset,
    strategy: tf.distribute.Strategy,
    *,
    shake: float = 0.0,
) -> Outcome:
    """The steps of `run` by the engine of `config`: model, optimizer and learning rate are the run's own.

    `config` is the same training on other devices, or `run` itself. Each weight is changed by the share `shake` first,
    up or down.
    """
    state = make_state(run, dataset, strategy)
    fixed = tf.range(min(FIXED_EXAMPLES, dataset.splits["train"]), dtype=tf.int64)
    neutralised = neutralise(state.model, open_examples(dataset, "train").take(fixed)[0], strategy)
    if shake:
        _shake(state, shake)
    first = first_step_of(run, dataset.splits["train"])
    state.step.assign(first)
    engine = make_engine(config, dataset, strategy, state, task)
    losses = np.concatenate([done.losses for done in engine.run_steps(first, run.parity.steps)])
    variables = _variables(state)
    is_double = all(v.dtype == "float64" for v in state.model.trainable_variables)
    return Outcome(
        losses=losses,
        names=[path for path, _ in variables],
        values=[np.asarray(value, np.float64) for _, value in variables],
        spread=_spread([value for _, value in variables], strategy),
        precision="float64" if is_double else "float32",
        neutralised=neutralised,
        always_random=[x.name for x in random_layers(state.model) if not x._call_has_training_arg],
    )


def skips_together(config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy) -> bool:
    """Whether an overflow in the last replica alone makes all replicas of a mixed_float16 run skip that step.

    Computes in the run's own precision; all roles of a synchronous strategy call it.
    """
    keras.config.set_dtype_policy("mixed_float16")
    # `Model.fit` leaves the step alone, and has the same optimizer.
    config = dataclasses.replace(config, precision="mixed_float16", engine="loop")
    state = make_state(config, dataset, strategy)
    optimizer = state.optimizer
    # No step overflows by itself.
    optimizer.dynamic_scale.assign(1.0)
    optimizer.scale_loss = _overflow_in_last(optimizer.scale_loss, state.step, strategy)
    engine = make_engine(config, dataset, strategy, state, task)
    for _ in engine.run_steps(0, SKIP_STEPS):
        pass
    variables = [v.value for v in [*state.model.trainable_variables, *optimizer.variables]]
    variables = [value for value in variables if value.dtype.is_floating]
    sizes = np.array([np.abs(value.numpy()).max(initial=1.0) for value in variables])
    # What is not finite is not near anything.
    are_equal = bool(np.all(_spread(variables, strategy) <= EQUAL * sizes))
    return are_equal and int(optimizer.iterations.numpy()) < SKIP_STEPS


def _overflow_in_last(
    scale_loss: Callable[[tf.Tensor], tf.Tensor], step: tf.Variable, strategy: tf.distribute.Strategy
) -> Callable[[tf.Tensor], tf.Tensor]:
    """As `scale_loss`, but infinite in the last replica at step 1."""

    def scale(loss: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_here = tf.logical_and(tf.equal(replica, strategy.num_replicas_in_sync - 1), tf.equal(step, 1))
        return scale_loss(loss) * tf.where(is_here, np.inf, 1.0)

    return scale


def _variables(state: TrainingState) -> list[tuple[str, tf.Variable]]:
    """All that hold fractions: weights, statistics and slots, without counters and the states of random generators."""
    variables = [(v.path, v.value) for v in [*state.model.variables, *state.optimizer.variables]]
    return [(path, value) for path, value in variables if value.dtype.is_floating]


def _shake(state: TrainingState, share: float) -> None:
    signs = np.random.default_rng(0)
    for variable in state.model.trainable_variables:
        value = np.asarray(variable.value)
        variable.assign(value * (1 + share * signs.choice([-1, 1], value.shape)))


def _spread(variables: list[tf.Variable], strategy: tf.distribute.Strategy) -> np.ndarray:
    if strategy.num_replicas_in_sync == 1:
        return np.zeros(len(variables))

    def spread_of_replica() -> tf.Tensor:
        context, mean = tf.distribute.get_replica_context(), tf.distribute.ReduceOp.MEAN
        values = [tf.cast(tf.identity(v), tf.float64) for v in variables]
        means = context.all_reduce(mean, values)
        away = [tf.reduce_max(tf.abs(v - m)) for v, m in zip(values, means, strict=True)]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stack(away))

    per_replica = compiled(lambda: strategy.run(spread_of_replica))()
    return strategy.experimental_local_results(per_replica)[0].numpy()


def compare(result: ParityResult, ours: Outcome, reference: Outcome) -> ParityResult:
    """`result` with the differences of two outcomes, and what they mean."""
    differences = _variable_differences(ours, reference)
    # NaN is larger than all: a variable that has one is the worst.
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    loss = float(_loss_differences(ours, reference).max())
    status, reason = _judge(result, ours, reference, float(np.maximum(loss, differences[worst])))
    return dataclasses.replace(
        result,
        status=status,
        reason=reason,
        max_loss_diff=finite(loss),
        max_weight_diff=finite(float(differences[worst])),
        worst_variable=ours.names[worst],
        reference_losses=tuple(finite(reference.losses.tolist())),
    )


def excuse(result: ParityResult, ours: Outcome, reference: Outcome, shaken: Outcome) -> ParityResult:
    """A failed `result`, or `not_applicable` where rounding alone would have done as much.

    An unstable training multiplies every difference by thousands in each step. What tells then is the first figure that
    is beyond the tolerance: after an error it is as large as the error, else about as large as in `shaken`, a reference
    that began with weights changed by a rounding.
    """
    found, by_rounding = _trace(ours, reference), _trace(shaken, reference)
    beyond = np.flatnonzero(~(found <= result.tolerance))
    if not beyond.size or not found[beyond[0]] <= EXCUSED[result.precision] * by_rounding[beyond[0]]:
        return result
    change = f"in {result.steps} steps rounding alone changes the training by {by_rounding.max():.2g}"
    return dataclasses.replace(
        result, status="not_applicable", reason=f"{change}: lower learning_rate.peak or parity.steps to check it"
    )


def _judge(result: ParityResult, ours: Outcome, reference: Outcome, difference: float) -> tuple[str, str]:
    """Status and reason; `difference` is the largest one found."""
    for who, outcome in (("one replica", reference), ("the strategy", ours)):
        bad = np.flatnonzero(~np.isfinite(outcome.losses))
        if bad.size:
            step = result.first_step + int(bad[0]) + 1
            message = f"the loss is {outcome.losses[bad[0]]} at step {step} on {who}: lower learning_rate.peak"
            return _fixed_statistics_may_diverge(ours, reference), message
    if difference <= result.tolerance:
        return "pass", ""
    if ours.always_random:
        names = ", ".join(ours.always_random)
        return "not_applicable", f"the layer {names} draws random numbers and has no argument `training`"
    if not np.isfinite(difference):
        return "fail", "a variable is not finite after the steps"
    return "fail", f"the replicas train differently: {difference:.3g} is more than rounding ({result.tolerance:g})"


def _fixed_statistics_may_diverge(ours: Outcome, reference: Outcome) -> str:
    """With statistics that do not follow the weights, a deep network may diverge that trains well otherwise."""
    both = not np.isfinite(ours.losses).all() and not np.isfinite(reference.losses).all()
    has_fixed = any(layer.why == BATCH_STATISTICS for layer in ours.neutralised)
    return "not_applicable" if both and has_fixed else "fail"


def _trace(ours: Outcome, reference: Outcome) -> np.ndarray:
    """Difference of the loss at each step, then the largest of the variables."""
    return np.append(_loss_differences(ours, reference), np.max(_variable_differences(ours, reference)))


def _loss_differences(ours: Outcome, reference: Outcome) -> np.ndarray:
    return np.array([_difference(a, b) for a, b in zip(ours.losses, reference.losses, strict=True)])


def _variable_differences(ours: Outcome, reference: Outcome) -> np.ndarray:
    pairs = zip(ours.values, reference.values, ours.spread, strict=True)
    return np.array([np.maximum(_difference(a, b), spread / _scale(b)) for a, b, spread in pairs])


def _difference(value: np.ndarray, reference: np.ndarray) -> float:
    """The largest difference of two elements; relative where there are figures above 1: rounding grows with them."""
    return float(np.abs(value - reference).max(initial=0.0) / _scale(reference))


def _scale(reference: np.ndarray) -> float:
    return float(np.abs(reference).max(initial=1.0))


TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
# A change of the weights that is no more than rounding.
SHAKES = {"float64": 1e-15, "float32": 1e-7}
# How much further than the shaken reference the strategy may be away: rounding hits every sum, shaking only the start.
# A stable training stays near its shake, which times this is below the tolerance: no error in it is excused.
EXCUSED = {"float64": 1e4, "float32": 1e2}
NOT_TOGETHER = "where one replica overflows in mixed_float16, not all of them skip the step"


def check_role(folder: Path, run_directory: str, config: dict[str, Any]) -> NoReturn:
    """Do this role's part of the check and end: the chief writes `parity.json` to the folder, the others wait for it.

    Nothing in the run directory is changed; `config` is what `parity_config` makes of the run.
    """
    directory, result_file = RunDirectory(Path(run_directory)), folder / RESULT
    run, skips = directory.read_config(), True
    checked = dataclasses.replace(from_dict(config), model=run.model)  # the weights are where they are on this machine
    task, strategy = take_part(checked)
    dataset = PreparedDataset.open(Path(directory.read_identity().dataset))
    if run.precision == "mixed_float16" and strategy.num_replicas_in_sync > 1:
        skips = skips_together(checked, task, dataset, strategy)
        keras.backend.clear_session()
    check = check_steps if checked.is_synchronous or checked.cluster.workers == 1 else measure_staleness
    result = check(checked, task, dataset, strategy)
    if task.is_chief:
        if not skips:
            result = dataclasses.replace(result, status="fail", reason=NOT_TOGETHER)
        dataclasses.replace(result, notes=parity_notes(run)).write(result_file)
    # The chief computes the reference meanwhile.
    leave_with(result_file)


def check_steps(
    config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy
) -> ParityResult:
    """Train the steps on the strategy and, in the chief, by the loop on one replica; what the comparison says."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    ours = train_steps(config, config, task, dataset, strategy)
    result = ParityResult(
        status="pass",
        steps=config.parity.steps,
        first_step=first_step_of(config, dataset.splits["train"]),
        global_batch_size=config.global_batch_size,
        replicas=config.replicas,
        precision=ours.precision,
        tolerance=TOLERANCES[ours.precision],
        losses=tuple(finite(ours.losses.tolist())),
        neutralised=ours.neutralised,
    )
    if not task.is_chief:
        return result
    parts = math.ceil(config.global_batch_size / (config.micro_batch_size or config.global_batch_size))
    batch = BatchConfig(size=config.global_batch_size, per="global", accumulate=parts)
    # Its rate is the run's, whose peak may be scaled with the replicas.
    several = {"cluster": ClusterConfig(), "learning_rate": LearningRateConfig(), "stop": StopConfig()}
    alone = dataclasses.replace(config, strategy="single", engine="loop", batch=batch, **several)
    device = tf.distribute.OneDeviceStrategy(_own_device(strategy))
    reference = train_steps(config, alone, ALONE, dataset, device)
    result = compare(result, ours, reference)
    if result.status == "fail":
        shaken = train_steps(config, alone, ALONE, dataset, device, shake=SHAKES[ours.precision])
        result = excuse(result, ours, reference, shaken)
    return result


def _own_device(strategy: tf.distribute.Strategy) -> str:
    """A device of this process: the first replica's, or the chief's own where the replicas are elsewhere."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return "/job:chief/replica:0/task:0/device:CPU:0"
    return strategy.extended.worker_devices[0]


def measure_staleness(
    config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy
) -> ParityResult:
    """Asynchronous updates differ by design: how old the weights were that they were computed from."""
    state = make_state(config, dataset, strategy)
    engine = make_engine(config, dataset, strategy, state, task, measure_staleness=True)
    first, steps = first_step_of(config, dataset.splits["train"]), config.parity.steps
    state.step.assign(first)
    # Which worker has compiled first would decide the figures of the first steps.
    for _ in engine.run_steps(first, steps):
        pass
    done = list(engine.run_steps(first + steps, steps))
    staleness = np.concatenate([part.staleness for part in done if part.staleness is not None])
    return ParityResult(
        status="not_applicable",
        reason=f"{config.cluster.workers} workers update asynchronously: no two runs are the same, and none is wrong",
        steps=steps,
        first_step=first + steps,
        global_batch_size=config.global_batch_size,
        replicas=config.replicas,
        precision="float32",
        losses=tuple(finite(np.concatenate([part.losses for part in done]).tolist())),
        mean_staleness=float(staleness.mean()),
        max_staleness=int(staleness.max()),
    )


def neutralise(model: keras.Model, images: tf.Tensor, strategy: tf.distribute.Strategy) -> tuple[Neutralised, ...]:
    """Let the layers that differ between replicas run as in evaluation, for good; nested models are looked into.

    BatchNormalization trains its gamma and beta still, and normalises with the statistics of `images`: those of a fresh
    model (mean 0, variance 1) let the signal of a deep network vanish, and every error with it. A frozen one runs as in
    evaluation anyway and is left alone.

    The images are (n, height, width, channels) uint8, the same on every side that is compared.
    """
    random = [layer for layer in random_layers(model) if layer._call_has_training_arg]
    normalising = [x for x in model._flatten_layers() if isinstance(x, keras.layers.BatchNormalization) and x.trainable]
    # Random layers first: their draws would change the statistics.
    _run_as_in_evaluation(random)
    if normalising:
        _take_statistics(model, normalising, images, strategy)
    _run_as_in_evaluation(normalising)
    why = {**dict.fromkeys(_kinds(normalising), BATCH_STATISTICS), **dict.fromkeys(_kinds(random), RANDOM_DRAWS)}
    counts = Counter([*_kinds(normalising), *_kinds(random)])
    return tuple(Neutralised(layer=kind, count=count, why=why[kind]) for kind, count in counts.items())


def random_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Layers that draw random numbers; one without an argument `training` cannot be neutralised."""
    return [layer for layer in model._flatten_layers() if getattr(layer, "_seed_generators", None)]


def _kinds(layers: Sequence[keras.layers.Layer]) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def _take_statistics(
    model: keras.Model,
    layers: Sequence[keras.layers.BatchNormalization],
    images: tf.Tensor,
    strategy: tf.distribute.Strategy,
) -> None:
    """Set the moving statistics to those of `images`: every replica computes the same, and nothing is exchanged."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0

    def forward() -> None:
        model(images, training=True)

    compiled(lambda: strategy.run(forward))()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def _run_as_in_evaluation(layers: Sequence[keras.layers.Layer]) -> None:
    for layer in layers:
        layer.call = _without_training(layer.call)


def _without_training(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)

    def call_as_in_evaluation(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(*args, **kwargs)
        bound.arguments["training"] = False
        return call(*bound.args, **bound.kwargs)

    return call_as_in_evaluation
