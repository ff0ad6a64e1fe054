"""Networks for tests, imported by role processes as `small_models:NAME`."""

import keras


def with_batch_norm(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A convolution with BatchNormalization."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2)(x))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def smooth(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Convolutions without ReLU or max-pooling.

    Where two inputs of a maximum are equal up to rounding, as in the flat background of a digit, another order of
    summation picks the other one and sends the gradient elsewhere: a jump, not an error of the strategy.
    """
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 3, strides=2, activation="tanh")(x)
    x = keras.layers.Dense(64, activation="tanh")(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def exploding(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Logits that overflow float32 after the first large update."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1e30)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def with_all_state(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Everything a training can carry from step to step: moving statistics, and the state of Dropout's generator."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(16, 3, strides=2)(x))
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(keras.layers.ReLU()(x)))
    x = keras.layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))
