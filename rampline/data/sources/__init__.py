"""The sources by the first word of `data.source`: one module each.

A source module has `directory_name(config)`, `stat_fingerprint(config, tfds_directory)` (quick, without TensorFlow:
also run by the flow process) and `open_source(config, tfds_directory, for_training=True, tell=None) -> Source`, which
tells of a download. Each raises `DatasetError` where the source cannot be read, or not be trained on.
"""

from __future__ import annotations

from types import ModuleType

from rampline.config import DataConfig
from rampline.config.choices import SOURCES
from rampline.data.sources.source import path_of


def source_module(config: DataConfig) -> ModuleType:
    """The module that reads `config.source`."""
    return SOURCES[config.source.partition(":")[0]].load()


def place_of(source: str) -> str:
    """`data.source` with its path absolute and links followed: equal however one place is written."""
    kind = source.partition(":")[0]
    return f"{kind}:{path_of(source).resolve()}" if kind in ("folder", "csv") else source
