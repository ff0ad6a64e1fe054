import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from rampline.data.decoder import Decoder, decode_and_resize


def test_images_of_any_size_in_one_call(make_image):
    encoded = [make_image(0, (12, 10)), make_image(1, (40, 31), "jpg"), make_image(2, (5, 90))]
    decoded = Decoder((8, 8, 3))(encoded)
    assert [(image.height, image.width) for image in decoded] == [(12, 10), (40, 31), (5, 90)]
    for image, content in zip(decoded, encoded, strict=True):
        np.testing.assert_array_equal(image.pixels, decode_and_resize(tf.constant(content), (8, 8, 3)))


def test_one_image_of_a_call_is_decoded_at_a_time():
    graph = Decoder((8, 8, 3))._decode_upright.get_concrete_function().graph
    (loop,) = (operation for operation in graph.get_operations() if "While" in operation.type)
    assert loop.get_attr("parallel_iterations") == 1


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_broken_images_are_named_and_the_others_kept(make_image, kind):
    good = [make_image(seed, (30, 30), kind) for seed in range(4)]
    broken = [b"", b"not an image", good[0][:60], good[0][: len(good[0]) // 2], b"RIFF\0\0\0\0WEBPVP8 "]
    decoded = Decoder((8, 8, 3))([*good[:2], *broken, *good[2:]])
    assert [image.pixels is None for image in decoded] == [False] * 2 + [True] * 5 + [False] * 2
    problems = [image.problem for image in decoded if image.pixels is None]
    assert all(problem and "\n" not in problem and "node" not in problem for problem in problems), problems


def test_images_are_turned_as_each_of_them_says(turned, photograph):
    decoded = Decoder((32, 24, 3))([turned(orientation, "png") for orientation in (6, 1, 3)])
    assert [(image.height, image.width) for image in decoded] == [(64, 96)] * 3
    np.testing.assert_array_equal(decoded[0].pixels, decoded[1].pixels)
    np.testing.assert_array_equal(decoded[2].pixels, decoded[1].pixels)


@pytest.fixture
def colours() -> Image.Image:
    """16 of them, so that a GIF has them all."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize(
        (7, 9), Image.Resampling.NEAREST
    )


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_all_kinds_get_the_channels_that_are_asked_for(colours, channels):
    bmps = [encode(colours.convert(mode), "bmp") for mode in ("L", "RGB", "RGBA")]
    others = [encode(colours.quantize(16), "gif"), encode(colours, "webp", lossless=True), encode(colours, "png")]
    grey, rgb = np.asarray(colours.convert("L"))[..., None], np.asarray(colours)
    expected = [grey] * 6 if channels == 1 else [grey.repeat(3, axis=2), *[rgb] * 5]
    decoded = Decoder((9, 7, channels))([*bmps, *others])
    for image, pixels in zip(decoded, expected, strict=True):
        assert image.pixels is not None, image.problem
        np.testing.assert_allclose(image.pixels.astype(int), pixels, atol=1 if channels == 1 else 0)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_palette_of_a_bmp_is_not_taken_for_greys(colours, channels):
    grey = encode(colours.convert("L"), "bmp")
    # As later versions of Windows write it: the palette begins behind a longer header.
    longer = b"".join([grey[:10], (1078 + 84).to_bytes(4, "little"), bytes([124, 0, 0, 0]), grey[18:54], bytes(84)])
    pixels = np.asarray(colours.convert("L"))[..., None].repeat(channels, axis=2)
    coloured, *greys = Decoder((9, 7, channels))([encode(colours.quantize(16), "bmp"), grey, longer + grey[54:]])
    assert coloured.pixels is None
    assert "a BMP with a palette of colours" in coloured.problem
    for image in greys:
        assert image.pixels is not None, image.problem
        np.testing.assert_array_equal(image.pixels, pixels)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_animated_webp_is_undecodable(colours, channels):
    """TensorFlow ends the process where it is asked for the channels that such a file has."""
    animation = encode(colours, "webp", save_all=True, append_images=[colours.rotate(180)])
    (image,) = Decoder((9, 7, channels))([animation])
    assert image.pixels is None
    assert "WebP Animation" in image.problem
