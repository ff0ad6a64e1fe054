"""What a user would run instead: a script that trains the convnet on scikit-learn's digits, and tells of its steps.

Complete in itself, as such a script is: it imports nothing but what it trains with. A process beside
`benchmarks.variants.startup`, which has the clock.
"""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

EPOCHS = 1


def main() -> None:
    pixels, labels = load_digits(return_X_y=True)
    images = tf.image.resize(pixels.reshape(-1, 8, 8, 1) / 16.0, (28, 28))
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    tell = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print("step", flush=True))
    model.fit(images, labels, batch_size=32, epochs=EPOCHS, verbose=0, callbacks=[tell])


if __name__ == "__main__":
    main()
