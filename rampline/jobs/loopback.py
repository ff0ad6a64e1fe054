"""TensorFlow's gRPC servers on loopback alone.

TensorFlow binds its server to every interface, whatever host TF_CONFIG names ("0.0.0.0" is written into its
`grpc_server_lib.cc`), and the server has no authentication (tensorflow/tensorflow#11689): whoever reaches the port can
run operations in the process. For a cluster on loopback the library's calls of `bind` are therefore led through ours,
which narrows the address. Linux with glibc; elsewhere `listen_on_loopback` says that it could not.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Iterator

import numpy as np

PT_DYNAMIC = 2
DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_JMPREL = 2, 5, 6, 10, 23
SYMBOL_BYTES, RELOCATION_WORDS = 24, 3
PROT_READ_WRITE = 3

MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:0.0.0.0")[:12]

Bind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)


class _Segment(ctypes.Structure):
    """`Elf64_Phdr`."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        *[(name, ctypes.c_uint64) for name in ("offset", "address", "physical", "file_size", "memory_size", "align")],
    ]


class _Library(ctypes.Structure):
    """`struct dl_phdr_info`, as far as it is used."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("segment_count", ctypes.c_uint16),
    ]


Visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)


def listen_on_loopback(host: str) -> bool:
    """Make every server that TensorFlow starts in this process from now on listen on `host` alone.

    Args:
        host: `localhost`, or an IPv4 address of the loopback interface such as 127.0.0.1.

    Returns:
        whether that was possible here.
    """
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    _host.value = socket.inet_aton(socket.gethostbyname(host))
    slots = [slot for base, dynamic in _tensorflow_libraries() for slot in _slots_of_bind(base, dynamic)]
    for slot in slots:
        page = slot & -4096
        _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), PROT_READ_WRITE)
        ctypes.c_uint64.from_address(slot).value = ctypes.cast(_bind_to_loopback, ctypes.c_void_p).value or 0
    return bool(slots)


def _bind(descriptor: int, address: int, length: int) -> int:
    family = ctypes.c_uint16.from_address(address).value
    if family == socket.AF_INET:
        _narrow(address + 4, _host.raw)
    elif family == socket.AF_INET6:
        # Servers listen on a socket of both families, for which this form stands for the IPv4 address.
        _narrow(address + 8, MAPPED + _host.raw)
    return _libc.bind(descriptor, ctypes.c_void_p(address), ctypes.c_uint(length))


def _narrow(host: int, loopback: bytes) -> None:
    if not any(ctypes.string_at(host, len(loopback))):
        ctypes.memmove(host, loopback, len(loopback))


_libc = ctypes.CDLL(None)
_host = ctypes.create_string_buffer(socket.inet_aton("127.0.0.1"), 4)
# C code keeps the address of this function for the life of the process.
_bind_to_loopback = Bind(_bind)


def _tensorflow_libraries() -> list[tuple[int, dict[int, int]]]:
    """Base address and dynamic section of each loaded library of TensorFlow."""
    found: list[tuple[int, dict[int, int]]] = []

    def visit(library: ctypes._Pointer[_Library], _size: int, _data: int) -> int:
        info = library.contents
        if b"libtensorflow" in (info.name or b""):
            segments = [info.segments[i] for i in range(info.segment_count)]
            found.extend((info.base, dict(_dynamic(info.base, s.address))) for s in segments if s.type == PT_DYNAMIC)
        return 0

    _libc.dl_iterate_phdr(Visitor(visit), None)
    return found


def _dynamic(base: int, address: int) -> Iterator[tuple[int, int]]:
    entry = base + address
    while tag := ctypes.c_uint64.from_address(entry).value:
        value = ctypes.c_uint64.from_address(entry + 8).value
        # glibc has turned addresses into absolute ones; other loaders leave them relative.
        is_relative = tag in (DT_STRTAB, DT_SYMTAB, DT_JMPREL) and value < base
        yield tag, value + base if is_relative else value
        entry += 16


def _slots_of_bind(base: int, dynamic: dict[int, int]) -> list[int]:
    """Addresses of the pointers through which the library calls `bind`."""
    relocations = _memory(dynamic[DT_JMPREL], dynamic[DT_PLTRELSZ], np.uint64).reshape(-1, RELOCATION_WORDS)
    symbols = (relocations[:, 1] >> np.uint64(32)).astype(np.int64)
    table = _memory(dynamic[DT_SYMTAB], (int(symbols.max(initial=0)) + 1) * SYMBOL_BYTES, np.uint32)
    names = table[symbols * (SYMBOL_BYTES // 4)].astype(np.int64)
    strings = _memory(dynamic[DT_STRTAB], dynamic[DT_STRSZ], np.uint8)
    wanted = np.frombuffer(b"bind\0", np.uint8)
    names = np.minimum(names, len(strings) - len(wanted))
    matches = (strings[names[:, None] + np.arange(len(wanted))] == wanted).all(axis=1)
    return [base + int(offset) for offset in relocations[matches, 0]]


def _memory(address: int, size: int, dtype: type[np.generic]) -> np.ndarray:
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), dtype)
