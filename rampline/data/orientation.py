"""Which way up an encoded image is shown: cameras note it as EXIF data and do not turn the pixels. No TensorFlow."""

from __future__ import annotations

import struct

UPRIGHT = 1
_EXIF = b"Exif\0\0"
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_APP1, _START_OF_SCAN = 0xFFE1, 0xFFDA


def read_orientation(encoded: bytes) -> int:
    """The orientation of a JPEG, PNG or WebP: 1 to 8 (EXIF 2.32, tag 274), and 1, upright, if there is none to read."""
    try:
        if encoded.startswith(b"\xff\xd8"):
            return _read_tiff(_find_in_jpeg(encoded))
        if encoded.startswith(b"\x89PNG\r\n\x1a\n"):
            return _read_tiff(_find_in_png(encoded))
        if encoded.startswith(b"RIFF") and encoded.startswith(b"WEBP", 8):
            return _read_tiff(_find_in_webp(encoded))
    except struct.error:  # it ends too early: the decoder says so, if that is more than a broken note
        pass
    return UPRIGHT


def _find_in_jpeg(encoded: bytes) -> bytes:
    at = 2
    while True:
        marker, size = struct.unpack_from(">HH", encoded, at)
        if marker == 0xFFFF:  # a marker may have fill bytes in front
            at += 1
        elif marker == _START_OF_SCAN or marker < 0xFF00:
            return b""
        elif marker == _APP1 and encoded.startswith(_EXIF, at + 4):
            return encoded[at + 4 + len(_EXIF) : at + 2 + size]
        else:
            at += 2 + size


def _find_in_png(encoded: bytes) -> bytes:
    at = 8
    while at < len(encoded):
        size, kind = struct.unpack_from(">I4s", encoded, at)
        if kind == b"eXIf":
            return encoded[at + 8 : at + 8 + size]
        at += 12 + size
    return b""


def _find_in_webp(encoded: bytes) -> bytes:
    at = 12
    while at < len(encoded):
        kind, size = struct.unpack_from("<4sI", encoded, at)
        if kind == b"EXIF":
            return encoded[at + 8 : at + 8 + size].removeprefix(_EXIF)
        at += 8 + size + size % 2
    return b""


def _read_tiff(block: bytes) -> int:
    order = _BYTE_ORDERS.get(block[:4])
    if order is None:
        return UPRIGHT
    (directory,) = struct.unpack_from(order + "I", block, 4)
    (entries,) = struct.unpack_from(order + "H", block, directory)
    for at in range(directory + 2, directory + 2 + 12 * entries, 12):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", block, at)
        if tag == _ORIENTATION_TAG:
            return value if (kind, count) == (_SHORT, 1) and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
