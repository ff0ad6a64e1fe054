"""Whether what decodes of a source is enough to train on."""

from __future__ import annotations

from collections.abc import Set

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import DatasetError


def check_undecodable_share(config: DataConfig, *, undecodable: int, examples: int, first: str = "") -> None:
    """The share of examples that do not decode must be at most `data.max_undecodable_share`.

    Args:
        config: what is asked for.
        undecodable: examples that do not decode.
        examples: all examples that were selected, those included.
        first: one of them and its problem, for the message.

    Raises:
        DatasetError: otherwise.
    """
    if undecodable > config.max_undecodable_share * examples:
        allowed = f"data.max_undecodable_share={config.max_undecodable_share:g} allows"
        example = f"; the first is {first}" if first else ""
        raise DatasetError(
            f"{undecodable} of {examples} images of {config.source} do not decode, more than {allowed}{example}"
        )


def check_present(config: DataConfig, dataset: PreparedDataset) -> None:
    """A dataset that was prepared under a laxer `max_undecodable_share` must satisfy the one asked for now."""
    examples = sum(dataset.splits.values()) + dataset.undecodable
    check_undecodable_share(config, undecodable=dataset.undecodable, examples=examples)


def check_classes(
    chosen: Set[tuple[str, int]], stored: Set[tuple[str, int]], class_names: tuple[str, ...], source: str
) -> None:
    """No class may lose all its training examples because they do not decode, and no split all its examples.

    Args:
        chosen: (split, label) of the examples that were selected.
        stored: (split, label) of those of them that decode.
        class_names: name of every label.
        source: what to name in an error.

    Raises:
        DatasetError: otherwise.
    """
    lost = [label for split, label in sorted(chosen - stored) if split == "train"]
    if lost:
        raise DatasetError(
            f"class {class_names[lost[0]]!r} of {source} has no training image that decodes: one is needed"
        )
    empty = {split for split, _ in chosen} - {split for split, _ in stored}
    if empty:
        raise DatasetError(f"{source} has no {min(empty)} image that decodes: at least one is needed")
