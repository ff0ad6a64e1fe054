import numpy as np
import pytest
import tensorflow as tf

from rampline.data.decode import decode_and_resize, resize


def test_same_size_keeps_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    image = decode_and_resize(tf.io.encode_png(pixels), (9, 7, 3)).numpy()
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, pixels)


def test_halving_averages_neighbours():
    # A triangle filter of radius 2 at half size: weights 1/8, 3/8, 3/8, 1/8; columns far from the edge are exact.
    columns = np.array([0, 0, 0, 80, 80, 0, 0, 0], np.uint8)
    pixels = np.broadcast_to(columns[None, :, None], (8, 8, 1))
    image = decode_and_resize(tf.io.encode_png(pixels), (4, 4, 1)).numpy()
    np.testing.assert_array_equal(image[1, :, 0], [0, 40, 40, 0])


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_are_converted(channels):
    grey = np.full((6, 6, 1), 77, np.uint8)
    image = decode_and_resize(tf.io.encode_png(grey), (8, 8, channels)).numpy()
    assert image.shape == (8, 8, channels)
    assert (image == 77).all()


def test_a_batched_pipeline_gives_the_same_pixels():
    encoded = [
        tf.io.encode_jpeg(np.random.default_rng(i).integers(0, 256, (20 + i, 31, 3), dtype=np.uint8)) for i in range(5)
    ]
    dataset = tf.data.Dataset.from_tensor_slices(encoded).map(lambda image: decode_and_resize(image, (16, 16, 3)))
    eager = [decode_and_resize(image, (16, 16, 3)).numpy() for image in encoded]
    np.testing.assert_array_equal(np.stack(list(dataset.as_numpy_iterator())), np.stack(eager))


@pytest.mark.parametrize("size", [(7, 5), (128, 128), (375, 500), (33, 1000), (1, 1)])
def test_black_and_white_stay_what_they_are(size):
    """Rounding errors of the resize must not carry white over 255, where it would become black."""
    for value in (0, 1, 254, 255):
        image = tf.fill((*size, 3), tf.constant(value, tf.uint8))
        for side in (8, 28, 127, 224):
            assert set(np.unique(resize(image, (side, side, 3)))) == {value}
