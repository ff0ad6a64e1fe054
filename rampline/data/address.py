"""Where a prepared dataset lies: an address made from the source's content and the preprocessing.

The content is known only after every example has been read. So that a second run need not read them, an index leads
from a quick fingerprint of the source (names, sizes, times) to the directory that was prepared from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rampline.config import DataConfig
from rampline.data.dataset import FORMAT_VERSION, STORAGES
from rampline.files import ASIDE, json_digest, read_json
from rampline.record.home import Home

# What `rampline.data.decoder` does: images made otherwise are another dataset, and of no use to a model of these.
RESIZE = "JPEG reduced while decoded, mean of area, bilinear where enlarged"
_KEY_LENGTH = 16
# For `delete_unfinished`: `NAME-KEY` of a directory that is written. A person may have hidden folders of their own
# beside it, such as `.git`.
UNFINISHED = f"*-{'[0-9a-f]' * _KEY_LENGTH}{ASIDE}"


def tfds_directory(home: Home) -> Path:
    """Where TensorFlow Datasets keeps what it downloads and prepares."""
    return home.data / "tfds"


def describe_preprocessing(
    config: DataConfig,
    *,
    channels: int,
    carve_validation: bool,
    is_upright: bool,
    has_copies: bool = False,
    cache: str = "",
) -> dict[str, Any]:
    """Everything beside the source's content that decides what is stored.

    Args:
        config: the data configuration.
        channels: of the stored images.
        carve_validation: whether the validation split is taken out of the source's train split.
        is_upright: whether all images are stored upright in the source, so that none is turned.
        has_copies: whether a training image that may become validation is there twice; with groups, in two of them.
        cache: what `data.cache=auto` stands for; left open, `auto` stays as it is.
    """
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "image_shape": [config.image_size, config.image_size, channels],
        "resize": RESIZE,
        "storage": STORAGES.get(cache or config.cache, "auto"),
        "limit": config.limit,
    }
    if carve_validation:
        values["validation_fraction"] = config.validation_fraction
    if carve_validation or config.limit is not None:
        values["split_seed"] = config.split_seed
    if not is_upright:
        values["orientation"] = "turned upright by EXIF"
    if config.group is not None:
        values["group"] = config.group
    if carve_validation and has_copies:
        values["copies"] = "in one split"
    return values


def dataset_directory(home: Home, name: str, fingerprint: str, preprocessing: dict[str, Any]) -> Path:
    """`home.data/<name>-<content key>`: equal for equal content and preprocessing."""
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "images"
    return home.data / f"{readable}-{json_digest([fingerprint, preprocessing])[:_KEY_LENGTH]}"


def look_up(home: Home, entry: Path) -> Path | None:
    """The directory that an `index_entry` leads to, or `None`."""
    # A name and nothing else: an index that was tampered with must not lead out of the home.
    directory = home.data / Path(read_json(entry)["directory"]).name if entry.is_file() else None
    return directory if directory and directory.is_dir() else None


def index_entry(home: Home, config: DataConfig, stat_fingerprint: str, scored_classes: Sequence[str] | None) -> Path:
    """The file that leads from the request to the directory."""
    # As if an image were turned, and one were there twice: before these were looked at, the same source led to images
    # that may lie on their side, and to copies in both splits.
    request = describe_preprocessing(
        config, channels=config.channels or 0, carve_validation=True, is_upright=False, has_copies=True
    )
    # The seed counts where a limit or a split is drawn, which is known only to who has opened the source.
    request["split_seed"] = config.split_seed
    if scored_classes is not None:
        request["scored_classes"] = list(scored_classes)
    return home.data / "index" / f"{json_digest([config.source, stat_fingerprint, request])[:_KEY_LENGTH]}.json"
