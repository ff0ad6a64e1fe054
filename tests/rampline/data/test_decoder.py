import numpy as np
import pytest
import tensorflow as tf

from rampline.data.decoder import Decoder, decode_and_resize


def test_images_of_any_size_in_one_call(make_image):
    encoded = [make_image(0, (12, 10)), make_image(1, (40, 31), "jpg"), make_image(2, (5, 90))]
    decoded = Decoder((8, 8, 3))(encoded)
    assert [(image.height, image.width) for image in decoded] == [(12, 10), (40, 31), (5, 90)]
    for image, content in zip(decoded, encoded, strict=True):
        np.testing.assert_array_equal(image.pixels, decode_and_resize(tf.constant(content), (8, 8, 3)))


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
