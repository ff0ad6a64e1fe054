"""Networks that their functions compile, imported by role processes as `compiled_models:NAME`."""

from typing import Any

import keras


def network(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A smooth network, see `small_models.smooth`, in the precision that is set."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Dense(16, activation="tanh")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype=keras.config.floatx())(x))


class Margin(keras.metrics.Metric):
    """The mean difference of the largest and the smallest logit."""

    def __init__(self, name: str = "margin") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        weights = keras.ops.cast(sample_weight, self.dtype)
        margins = keras.ops.max(y_pred, axis=-1) - keras.ops.min(y_pred, axis=-1)
        self.total.assign_add(keras.ops.sum(keras.ops.cast(margins, self.dtype) * weights))
        self.count.assign_add(keras.ops.sum(weights))

    def result(self) -> Any:
        return self.total / self.count


class LargestLogit(Margin):
    """A metric whose state does not add up: a maximum."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(keras.ops.maximum(self.total, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.total


def halved(y_true: Any, y_pred: Any) -> Any:
    """A loss of one's own, of classes as numbers."""
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True) / 2


def of_the_batch(y_true: Any, y_pred: Any) -> Any:
    """The loss of an example depends on all the others."""
    return halved(y_true, y_pred - keras.ops.mean(y_pred)) * keras.ops.max(y_pred)


def with_everything(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """AdamW with a schedule, decay, clipping and averages; smoothed labels; metrics of Keras and of one's own."""
    model = network(input_shape, classes)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(2e-3, 20, warmup_target=4e-3, warmup_steps=4),
        weight_decay=0.01,
        # Below the gradients' norm: what is clipped shows.
        global_clipnorm=0.2,
        use_ema=True,
        ema_momentum=0.8,
    )
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    f1 = keras.metrics.F1Score(average="macro", name="f1")
    model.compile(optimizer, loss, metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(3, "top3"), f1, Margin()])
    return model


def schedule_free(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """An optimizer that begins with a copy of the weights."""
    model = network(input_shape, classes)
    model.compile(keras.optimizers.ScheduleFreeAdamW(1e-3))
    return model


def with_own_loss(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Plain descent on a loss of one's own; no metrics."""
    model = network(input_shape, classes)
    model.compile(keras.optimizers.SGD(0.05), loss=halved)
    return model
