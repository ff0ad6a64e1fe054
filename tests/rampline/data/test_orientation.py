"""EXIF as Pillow writes it, and as nobody should."""

import struct

import numpy as np
import pytest
from PIL import Image

from rampline.data.orientation import read_orientation

JPEG = b"\xff\xd8"


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_the_orientation_is_read(turned, kind):
    assert [read_orientation(turned(orientation, kind)) for orientation in range(1, 9)] == list(range(1, 9))
    assert read_orientation(turned(6, kind, exif=b"")) == 1


@pytest.mark.parametrize("endian", ["<", ">"])
def test_both_byte_orders_and_other_tags(turned, endian):
    exif = Image.Exif()
    exif.endian = endian
    exif.update({0x010F: "a maker", 0x0110: "a model", 0x0112: 8, 0x0131: "a program"})
    assert read_orientation(turned(1, exif=exif.tobytes())) == 8
    del exif[0x0112]
    assert read_orientation(turned(1, exif=exif.tobytes())) == 1


def _jpeg(tag: int = 0x0112, kind: int = 3, count: int = 1, value: int = 6) -> bytes:
    block = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHH", 8, 1, tag, kind, count, value, 0)
    return JPEG + struct.pack(">HH", 0xFFE1, len(block) + 2) + block + b"\xff\xda"


def test_what_exif_does_not_define_turns_nothing():
    assert read_orientation(_jpeg()) == 6
    others = [{"value": 0}, {"value": 9}, {"value": 65535}, {"kind": 4}, {"count": 2}, {"tag": 0x0113}]
    assert [read_orientation(_jpeg(**other)) for other in others] == [1] * 6
    # A second image, such as a thumbnail, has a note of its own.
    assert read_orientation(JPEG + b"\xff\xda\0\2" + _jpeg()[2:]) == 1


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_damage_is_survived(turned, kind):
    """Cut off anywhere, and a thousand times with three bytes changed."""
    encoded, random = turned(6, kind)[:400], np.random.default_rng(0)
    for length in range(len(encoded)):
        assert read_orientation(encoded[:length]) in (1, 6)
    for _ in range(1000):
        damaged = bytearray(encoded)
        for at in random.integers(0, len(damaged), 3):
            damaged[at] = random.integers(256)
        assert 1 <= read_orientation(bytes(damaged)) <= 8
