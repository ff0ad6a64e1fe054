"""The network of study.yaml: `model.name` says `networks:network`."""

import keras


def network(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A small convolutional network, from (n, height, width, channels) uint8 images to (n, classes) logits."""
    return keras.Sequential(
        [
            keras.Input(input_shape, dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(classes),
        ]
    )
