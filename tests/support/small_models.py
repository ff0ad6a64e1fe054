"""Networks for tests, imported by role processes as `small_models:NAME`."""

import keras


def with_batch_norm(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A convolution with BatchNormalization."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2)(x))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def exploding(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Logits that overflow float32 after the first large update."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1e30)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))
