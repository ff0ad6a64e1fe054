"""The wire between the hosts of `hosts.py`: `python wire.py NAMESPACE...`, ended by the end of its standard input.

One TUN device `wire0` in each namespace, and this process between them. It has no ARP and sends no ICMP: a packet that
it does not pass on is lost in silence, as behind a dead switch of a routed network. The devices go with the process.
It does what `tc netem` does, which many kernels of virtual machines and containers are built without.

Each line of standard input is a JSON object `{"delay_ms": float, "loss_percent": float, "mbit": float, "cut": [ADDRESS,
…]}`, which holds for each direction from then on and is answered by an empty line. What a host sends takes its turn at
so many Mbit/s, 0 for no limit. Nothing reaches the hosts that are cut off, and nothing comes from them.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

DEVICE = b"wire0"
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES = 65536
PACKETS_PER_TURN = 64
IPV4_DESTINATION = slice(16, 20)


class Wire:
    """Carries packets between open TUN devices.

    Args:
        devices: file descriptor by the IPv4 address of its host, 4 bytes.
        seed: of the losses, so that a test sees the same share of them each time.
    """

    def __init__(self, devices: Mapping[bytes, int], seed: int = 0) -> None:
        self._devices = devices
        self._random = random.Random(seed)
        self._delay_seconds, self._loss, self._seconds_per_byte = 0.0, 0.0, 0.0
        self._cut = set[int]()
        # Until when each device is busy with what it has sent.
        self._busy = dict.fromkeys(devices.values(), 0.0)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()

    def run(self) -> None:
        """Until standard input ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            for device in self._devices.values():
                selector.register(device, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._seconds_to_next()):
                    if key.fd == sys.stdin.fileno():
                        line = sys.stdin.readline()
                        if not line:
                            return
                        self._set(json.loads(line))
                    else:
                        self._take_packets(key.fd)
                self._deliver()

    def _set(self, line: Mapping[str, Any]) -> None:
        self._cut = {self._devices[_packed(address)] for address in line["cut"]}
        self._delay_seconds, self._loss = line["delay_ms"] / 1000, line["loss_percent"] / 100
        self._seconds_per_byte = 8e-6 / line["mbit"] if line["mbit"] else 0.0
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _take_packets(self, device: int) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                packet = os.read(device, PACKET_BYTES)
            except BlockingIOError:
                return
            receiver = self._devices.get(packet[IPV4_DESTINATION])
            is_cut = device in self._cut or receiver in self._cut
            if receiver is not None and not is_cut and self._random.random() >= self._loss:
                sent = max(time.monotonic(), self._busy[device]) + len(packet) * self._seconds_per_byte
                self._busy[device] = sent
                entry = (sent + self._delay_seconds, next(self._numbers), receiver, packet)
                heapq.heappush(self._under_way, entry)

    def _seconds_to_next(self) -> float | None:
        return max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None

    def _deliver(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            *_, receiver, packet = heapq.heappop(self._under_way)
            os.write(receiver, packet)


def open_device(namespace: str) -> int:
    """Make `wire0` in a network namespace; it is there as long as the returned file descriptor is open."""
    with open(f"/run/netns/{namespace}") as file:
        # Python has os.setns from 3.12 on.
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI))
    return device


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def main(arguments: Sequence[str]) -> None:
    """Open the devices, tell so by an empty line, and carry; arguments are NAMESPACE=ADDRESS."""
    pairs = [argument.split("=") for argument in arguments]
    devices = {_packed(address): open_device(namespace) for namespace, address in pairs}
    sys.stdout.write("\n")
    sys.stdout.flush()
    Wire(devices).run()


if __name__ == "__main__":
    main(sys.argv[1:])
