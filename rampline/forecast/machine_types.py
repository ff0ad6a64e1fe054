"""A file of machine types: what a set-up would take on machines that nobody here has. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from rampline.config.setting import Count, NotNegative, Positive, Settings, refusal, setting, settings
from rampline.errors import ConfigError
from rampline.study.yaml_file import read_yaml


@settings("")
class MachineType(Settings):
    """A machine, as far as a forecast has to know it."""

    devices: Count = setting(1, "replicas that it has devices for")
    compute: Positive = setting(
        1.0, "how many times as fast one of its devices trains as one replica here: images/s there by images/s here"
    )
    link_gbit: Positive = setting(100.0, "what a replica sends to another, Gbit/s, between machines if there are any")
    link_latency_us: NotNegative = setting(20.0, "what the smallest message takes, microseconds")
    price_per_hour: NotNegative | None = setting(None, "USD")

    def all_reduce_ms(self, gradient_bytes: int, replicas: int) -> float:
        """What a sum over a ring of replicas takes."""
        sent = 2 * (replicas - 1) / replicas * gradient_bytes
        return 2 * (replicas - 1) * self.link_latency_us / 1e3 + 8e-6 * sent / self.link_gbit

    def shortage(self, replicas: int) -> str:
        """Why a process with so many replicas cannot run there; empty where it can."""
        if replicas <= self.devices:
            return ""
        return f"{replicas} replicas of one process need as many devices: it has {self.devices}"

    def price_of(self, *, workers: int, replicas: int) -> float | None:
        """USD per hour of as few machines as hold the workers, each of `replicas` of which there is no `shortage`."""
        if self.price_per_hour is None:
            return None
        return math.ceil(workers / (self.devices // replicas)) * self.price_per_hour


def read_machine_types(path: Path) -> dict[str, MachineType]:
    """The machine types of a file, which maps names to their figures.

    Raises:
        ConfigError: in one line, when it is not such a file.
    """
    content = read_yaml(path)
    if not isinstance(content, Mapping) or not content:
        example = "4xA100: {devices: 4, compute: 30, link_gbit: 2400, price_per_hour: 14.7}"
        raise ConfigError(f"{path.name}: it must map names of machine types to their figures, such as {example}")
    machines = dict[str, MachineType]()
    for name, values in content.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path.name}: {refusal(name, values, 'a mapping of keys')}")
        try:
            machines[str(name)] = MachineType(**{str(key): value for key, value in values.items()})
        except ConfigError as error:
            raise ConfigError(f"{path.name}: {name}: {error}") from error
    return machines
