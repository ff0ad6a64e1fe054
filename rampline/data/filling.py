"""Filling the directory of a prepared dataset: images, labels, data report, and the manifest that describes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rampline.config import DataConfig
from rampline.data.catalog import CatalogEntry
from rampline.data.checks import check_classes, check_undecodable_share
from rampline.data.dataset import FORMAT_VERSION, SPLITS
from rampline.data.decoder import DecodedImage, Decoder
from rampline.data.integrity import seal
from rampline.data.parallel import MapInOrder, in_chunks
from rampline.data.report import ReportRow, make_report, write_report
from rampline.data.sources.source import Example, Source
from rampline.data.storage import Content, SplitWriter, stored_content
from rampline.errors import DatasetError
from rampline.files import write_json

# Enough to pay for a call into TensorFlow, few enough to hold that many photographs per core.
_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be stored.

    Attributes:
        config: what was asked for.
        source: the open source.
        catalog: its examples.
        splits: the split to store each of them in, `""` for none.
        fingerprint: of the source.
        preprocessing: from `describe_preprocessing`.
        map_in_order: who reads and decodes.
    """

    config: DataConfig
    source: Source
    catalog: Sequence[CatalogEntry]
    splits: Sequence[str]
    fingerprint: str
    preprocessing: dict[str, Any]
    map_in_order: MapInOrder

    @property
    def chosen(self) -> Iterator[tuple[str, CatalogEntry]]:
        """The examples that are stored, each with its split."""
        return ((split, entry) for split, entry in zip(self.splits, self.catalog, strict=True) if split)


class _Image(NamedTuple):
    """What is kept of a decoded image: see `DecodedImage`, but the content is `stored_content`."""

    content: Content | None
    width: int
    height: int
    problem: str


def fill(directory: Path, plan: Plan, on_progress: Callable[[int, int], None]) -> None:
    """Write everything that a prepared dataset consists of into the empty `directory`, the manifest last.

    Raises:
        DatasetError: when too many images do not decode, or one has changed since the catalog was read.
    """
    rows, images = _write_images(directory, plan, on_progress)
    _check(plan, rows)
    write_report(directory, make_report(rows, source=plan.config.source, fingerprint=plan.fingerprint))
    undecodable = sum(bool(row.problem) for row in rows)
    write_json(directory / "manifest.json", seal(_manifest(directory, plan, images, undecodable=undecodable)))


def _write_images(
    directory: Path, plan: Plan, on_progress: Callable[[int, int], None]
) -> tuple[list[ReportRow], dict[str, dict]]:
    """A row for the report of every chosen example, and what the images of each split amount to."""
    examples = sum(1 for _ in plan.chosen)
    stored_splits = [split for split in SPLITS if split in plan.splits]
    rows: list[ReportRow] = []
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(SplitWriter(directory, split, plan.preprocessing["storage"]))
            for split in stored_splits
        }
        for (split, entry), image in zip(plan.chosen, _decode_chosen(plan), strict=True):
            if image.content is not None:
                writers[split].append(entry.label, image.content, entry.orientation)
            rows.append(_report_row(plan, split, entry, image))
            on_progress(len(rows), examples)
    return rows, {split: writer.describe() for split, writer in writers.items()}


def _report_row(plan: Plan, split: str, entry: CatalogEntry, image: _Image) -> ReportRow:
    return ReportRow(
        split=split,
        class_name=plan.source.class_names[entry.label],
        label=entry.label,
        name=entry.name,
        sha256=entry.sha256,
        width=image.width,
        height=image.height,
        problem=image.problem,
    )


def _decode_chosen(plan: Plan) -> Iterator[_Image]:
    decode = partial(_decode_chunk, Decoder(tuple(plan.preprocessing["image_shape"])), plan.preprocessing["storage"])
    return chain.from_iterable(plan.map_in_order(decode, in_chunks(_iterate_chosen(plan), _CHUNK)))


def _iterate_chosen(plan: Plan) -> Iterator[tuple[Example, str]]:
    """The chosen examples in the order of the catalog, each with the sha256 that it had then."""
    examples = chain.from_iterable(split.iterate() for split in plan.source.splits.values())
    for example, split, entry in zip(examples, plan.splits, plan.catalog, strict=True):
        if split:
            yield example, entry.sha256


def _decode_chunk(decoder: Decoder, storage: str, chunk: list[tuple[Example, str]]) -> list[_Image]:
    contents = [example.read() for example, _ in chunk]
    for content, (example, sha256) in zip(contents, chunk, strict=True):
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DatasetError(
                f"{example.name} changed while it was being prepared: prepare again when nothing writes there"
            )
    return [_make_image(storage, content, image) for content, image in zip(contents, decoder(contents), strict=True)]


def _make_image(storage: str, encoded: bytes, image: DecodedImage) -> _Image:
    content = None if image.pixels is None else stored_content(storage, pixels=image.pixels, encoded=encoded)
    return _Image(content, image.width, image.height, image.problem)


def _check(plan: Plan, rows: Sequence[ReportRow]) -> None:
    broken = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    first = broken[0] if broken else ""
    check_undecodable_share(plan.config, undecodable=len(broken), examples=len(rows), first=first)
    chosen = {(row.split, row.label) for row in rows}
    stored = {(row.split, row.label) for row in rows if not row.problem}
    check_classes(chosen, stored, plan.source.class_names, plan.config.source)


def _manifest(directory: Path, plan: Plan, images: dict[str, dict], *, undecodable: int) -> dict[str, Any]:
    small_files = sorted(path for path in directory.iterdir() if path.suffix in (".npy", ".csv", ".json"))
    return {
        "format_version": FORMAT_VERSION,
        "source": plan.config.source,
        "fingerprint": plan.fingerprint,
        "class_names": list(plan.source.class_names),
        "image_shape": plan.preprocessing["image_shape"],
        "splits": {split: described["examples"] for split, described in images.items()},
        "undecodable": undecodable,
        "storage": plan.preprocessing["storage"],
        "preprocessing": plan.preprocessing,
        "images": images,
        "files": {path.name: _describe_file(path) for path in small_files},
    }


def _describe_file(path: Path) -> dict[str, int | str]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
