from importlib.resources import files

import numpy as np
import pytest
import tensorflow as tf

from rampline.data.decoder import decode, decode_and_resize, resize


def test_same_size_keeps_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    image = decode_and_resize(tf.io.encode_png(pixels), (9, 7, 3)).numpy()
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, pixels)


def test_a_pixel_is_the_mean_of_the_area_it_covers():
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    means = pixels.reshape(4, 3, 4, 5, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resize(tf.constant(pixels), (4, 4, 3)), means, atol=0.5 + 1e-4)


def test_areas_that_end_within_a_pixel_count_their_part_of_it():
    columns = np.array([0, 90, 0], np.uint8)
    pixels = np.broadcast_to(columns[None, :, None], (3, 3, 1))
    # 1.5 columns each: (0 + 90 / 2) / 1.5.
    assert (resize(tf.constant(pixels), (2, 2, 1)).numpy() == 30).all()


@pytest.mark.parametrize("size", [(4, 4), (4, 40), (40, 4)])
def test_what_is_enlarged_in_a_direction_is_interpolated(size):
    """The mean of an area smaller than a pixel is that pixel: enlarged so, an image would be of blocks."""
    ramp = np.linspace(0, 200, size[0])[:, None] + np.linspace(0, 50, size[1])[None]
    image = resize(tf.constant(ramp[..., None].round(), tf.uint8), (16, 16, 1)).numpy()[..., 0]
    for axis in (0, 1):
        inner = np.diff(image.astype(int), axis=axis)
        assert (np.abs(inner) <= np.abs(inner).mean() * 3 + 1).all(), "a step between blocks"


def _photograph(height, width):
    """Smooth shapes, JPEG as a camera writes it: colours at half the resolution."""
    random = np.random.default_rng(height * width)
    shapes = tf.image.resize(random.uniform(20, 235, (6, 7, 3)), (height, width), method="bicubic")
    return tf.io.encode_jpeg(tf.cast(tf.clip_by_value(shapes, 0, 255), tf.uint8), quality=90)


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((30, 40), (30, 40)),
        ((32, 40), (16, 20)),
        ((64, 64), (16, 16)),
        ((400, 128), (50, 16)),
        ((1000, 1000), (125, 125)),
        ((500, 375), (63, 47)),
        # At an eighth, the last of 21 blocks would be completed by 7 columns: 7 / 161 of the image, 0.7 of 16 pixels.
        ((400, 161), (100, 41)),
        ((31, 40), (31, 40)),
    ],
)
def test_a_jpeg_is_reduced_while_it_stays_as_large_as_needed(size, decoded):
    image, original_size = decode(_photograph(*size), (16, 16, 3))
    assert tuple(original_size.numpy()) == size
    assert tuple(image.shape) == (*decoded, 3)


@pytest.mark.parametrize("size", [(500, 375), (127, 1000), (29, 30), (2000, 1500)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_reduced_jpeg_looks_like_the_whole_one(size, channels):
    encoded = _photograph(*size)
    whole = tf.io.decode_jpeg(encoded, channels=channels)
    expected = resize(whole, (28, 28, channels)).numpy().astype(float)
    difference = np.abs(decode_and_resize(encoded, (28, 28, channels)).numpy() - expected)
    moved_by_one = [np.abs(np.diff(expected, axis=axis)).mean() for axis in (0, 1)]
    # At the lower right edge 3/8 of a pixel in each direction, in the mean half of that.
    assert difference.mean() < 3 / 16 * sum(moved_by_one) + 0.5


def _distance(image, ideal):
    return float(np.abs(np.round(image) - ideal).mean())


@pytest.mark.parametrize("side", [64, 200])
@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_photographs_are_nearly_as_good_as_slow_resizing_makes_them(name, side):
    """Distances from Lanczos resampling of the whole image."""
    encoded = (files("sklearn.datasets") / "images" / name).read_bytes()
    whole, size = tf.io.decode_jpeg(encoded, channels=3), (side, side)
    ideal = np.clip(tf.image.resize(whole, size, method="lanczos3", antialias=True), 0, 255)
    antialiased = _distance(tf.image.resize(whole, size, antialias=True), ideal)
    by_default = _distance(tf.image.resize(whole, size), ideal)
    assert _distance(resize(whole, (*size, 3)), ideal) < antialiased
    ours = _distance(decode_and_resize(encoded, (*size, 3)), ideal)
    assert ours < 1.6 * antialiased
    assert ours < 0.8 * by_default


def test_other_kinds_are_decoded_whole():
    pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    image, original_size = decode(tf.io.encode_png(pixels), (8, 8, 3))
    assert tuple(original_size.numpy()) == (90, 70)
    np.testing.assert_array_equal(image, pixels)


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


@pytest.mark.parametrize("size", [(7, 5), (375, 500), (33, 1000), (1, 1)])
def test_black_and_white_stay_what_they_are(size):
    """Rounding errors of the resize must not carry white over 255, where it would become black."""
    for value in (0, 1, 254, 255):
        image = tf.fill((*size, 3), tf.constant(value, tf.uint8))
        for side in (8, 28, 127, 224):
            assert set(np.unique(resize(image, (side, side, 3)))) == {value}


@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_photograph_is_turned_upright(turned, photograph, orientation):
    """A JPEG, reduced to a half on the way, and a PNG; the image is not square, so that a turn too many is seen."""
    expected = resize(tf.constant(photograph), (32, 48, 3)).numpy().astype(int)
    for kind in ("jpeg", "png"):
        encoded = tf.constant(turned(orientation, kind))
        image, size = decode(encoded, (32, 48, 3), tf.constant(orientation))
        assert tuple(size.numpy()) == (64, 96)
        assert tuple(image.shape) == ((32, 48, 3) if kind == "jpeg" else (64, 96, 3))
        difference = np.abs(resize(image, (32, 48, 3)).numpy() - expected)
        assert difference.mean() < (2 if kind == "jpeg" else 0.01)
