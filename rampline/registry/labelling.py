"""The prediction process: images of a folder through a model from the registry. With TensorFlow, on one device."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from rampline.data.archives import Boundary
from rampline.data.compiled import compiled
from rampline.data.decoder import Decoder
from rampline.data.parallel import in_chunks, map_in_order
from rampline.data.sources.folder import is_image, walk
from rampline.errors import DatasetError, InputError
from rampline.files import csv_cell
from rampline.imports import import_own
from rampline.jobs.job import EVENTS
from rampline.record.events import EventWriter
from rampline.training.evaluation import to_probabilities


def walk_images(folder: Path) -> Iterator[Path]:
    """Files that are images by their names, in the order of their paths, hidden ones apart; and links to folders.

    One directory's names are held at a time. Links to folders are not entered: they may lead round in circles.
    """
    for parent, folders, names in walk(folder):
        yield from (path for name in folders if (path := Path(parent, name)).is_symlink())
        yield from (Path(parent, name) for name in names if is_image(name))


def read_image(path: Path, boundary: Boundary) -> tuple[str, bytes, str]:
    """(path, content, problem); a link that leads outside, a pipe, or a file that may not be read has a problem."""
    # A name may hold bytes that are no text; a table holds only text.
    name = os.fsencode(path).decode(errors="replace")
    if os.path.isdir(path):  # `Path.is_dir` raises where a link leads into a folder that may not be looked into
        return name, b"", "a link to a folder is not followed"
    try:
        boundary.stat(path)
        return name, path.read_bytes(), ""
    except OSError as error:
        return name, b"", f"cannot be read: {error.strerror}"
    except DatasetError as error:
        return name, b"", str(error)


class Row(NamedTuple):
    """One image: `label` is empty, `probability` None and `error` says why where it has none.

    `others` are the probabilities of all classes, in their order, where the table has them.
    """

    path: str
    label: str
    probability: float | None
    model_version: int
    error: str
    others: tuple[float | None, ...] = ()

    def cells(self) -> list[Any]:
        """One per column."""
        return [*self[:-1], *self.others]


COLUMNS = {
    "path": pa.string(),
    "label": pa.string(),
    "probability": pa.float32(),
    "model_version": pa.int32(),
    "error": pa.string(),
}
ROWS_PER_GROUP = 10_000


@contextmanager
def open_table(path: Path, suffix: str, others: Sequence[str] = ()) -> Iterator[Callable[[Sequence[Row]], None]]:
    """A table to fill, in the form that `suffix` names; synced to the disk at the end of the block.

    Yields what appends rows.

    The classes `others` have a column each with their probability, `p_CLASS`.
    """
    columns = COLUMNS | {f"p_{name}": pa.float32() for name in others}
    if suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
            writer.writerow(map(csv_cell, columns))
            yield lambda rows: writer.writerows(map(_csv_row, rows))
    else:
        schema = pa.schema(list(columns.items()))
        gathered: list[Row] = []
        with pq.ParquetWriter(path, schema) as writer:

            def write(rows: Sequence[Row], least: int = ROWS_PER_GROUP) -> None:
                # A group per batch would make files of nothing but their own index.
                gathered.extend(rows)
                if len(gathered) >= least:
                    cells = [dict(zip(columns, row.cells(), strict=True)) for row in gathered]
                    writer.write_table(pa.Table.from_pylist(cells, schema))
                    gathered.clear()

            yield write
            write((), 0)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _csv_row(row: Row) -> list[Any]:
    return [csv_cell(float(f"{cell:.6g}") if isinstance(cell, float) else cell) for cell in row.cells()]


# As preparation decodes them: enough to pay for a call into TensorFlow, few enough to hold that many photographs.
DECODED_AT_ONCE = 32
OWN_LAYER = "a layer class with @keras.saving.register_keras_serializable() in the module that model.name names"


class Labeller:
    """A model that names what is on images.

    Args:
        model: takes (batch, height, width, channels) uint8, gives (batch, classes) float32 logits.
        image_shape: (height, width, channels).
        class_names: of every logit.
        batch_size: images per step; a smaller last batch is padded, so that the model is traced once.
    """

    def __init__(
        self, model: keras.Model, *, image_shape: tuple[int, ...], class_names: Sequence[str], batch_size: int
    ) -> None:
        self._shape = (batch_size, *image_shape)
        self._names = class_names
        signature = [tf.TensorSpec(self._shape, tf.uint8)]
        self._step = compiled(lambda images: model(images, training=False), input_signature=signature)

    def label(self, images: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
        """Name of the likeliest class of at most `batch_size` images, and the probabilities of all, (classes,)."""
        if not images:
            return []
        batch = np.zeros(self._shape, np.uint8)
        batch[: len(images)] = images
        probabilities = to_probabilities(self._step(batch).numpy()[: len(images)].astype(np.float32))
        best = probabilities.argmax(axis=1)
        return [(self._names[int(label)], row) for label, row in zip(best, probabilities, strict=True)]


def label_folder(
    folder: Path,
    *,
    model: str,
    module: str,
    class_names: Sequence[str],
    image_shape: Sequence[int],
    images: str,
    table: str,
    suffix: str,
    batch_size: int,
    model_version: int = 0,
    with_all: bool = False,
) -> dict[str, Any]:
    """The job of a prediction: label a folder of images.

    Memory is bounded by the batch size and the number of cores, whatever the number of images.

    Args:
        folder: of the job.
        model: folder of the MLflow model.
        module: with the code of the model's own layers: it is imported first; empty for none.
        class_names: of the model's logits, in their order.
        image_shape: (height, width, channels) of its images.
        images: folder of the image files.
        table: file to write.
        suffix: its form, `.csv` or `.parquet`.
        batch_size: images per step of the model, at least 1.
        model_version: what the column of that name says.
        with_all: whether the table has the probability of each class.

    Returns:
        `counts` and `unreadable`, see `rampline.registry.prediction.Prediction`.

    Raises:
        InputError: when the model cannot be loaded, or the folder cannot be read.
    """
    height, width, channels = image_shape
    shape, events = (height, width, channels), EventWriter(folder / EVENTS)
    network = _load(Path(model) / "data" / "model.keras", module)
    labeller = Labeller(network, image_shape=shape, class_names=class_names, batch_size=batch_size)
    counts: Counter[str] = Counter()
    unreadable = done = 0
    others = class_names if with_all else ()
    with open_table(Path(table), suffix, others) as write:
        for batch in in_chunks(_decode_folder(Path(images), shape), batch_size):
            rows = _label_batch(labeller, batch, model_version, len(others))
            write(rows)
            counts.update(row.label for row in rows if row.label)
            unreadable += sum(bool(row.error) for row in rows)
            done += len(rows)
            events.progress(images=done)
    return {"counts": {name: counts[name] for name in class_names}, "unreadable": unreadable}


def _load(model_file: Path, module: str) -> keras.Model:
    try:
        if module:
            import_own(module)
        # Weights and layers, no code: Keras' safe mode stays on for a file that comes from a registry.
        return keras.models.load_model(model_file, compile=False)
    except Exception as error:
        raise InputError(f"the model cannot be loaded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What is wrong, without the configuration that Keras adds; and what to write, where Keras does not say it."""
    text = str(error).strip().partition("\n")[0].partition(" Full object config")[0]
    if "Lambda" in text or "lambda" in text:
        return f"its Lambda layer is code, which no model file may bring: write {OWN_LAYER} instead"
    return f"{text} ({OWN_LAYER} can be loaded)" if "Could not locate" in text else text


def _decode_folder(folder: Path, image_shape: tuple[int, int, int]) -> Iterator[tuple[str, np.ndarray | None, str]]:
    """(path, pixels, problem) of every file, decoded and resized by the function that preparation uses."""
    boundary, decoder = Boundary(folder), Decoder(image_shape)
    chunks = in_chunks(walk_images(folder), DECODED_AT_ONCE)
    yield from chain.from_iterable(map_in_order(partial(_decode_chunk, decoder, boundary), chunks))


def _decode_chunk(decoder: Decoder, boundary: Boundary, paths: list[Path]) -> list[tuple[str, np.ndarray | None, str]]:
    files = [read_image(path, boundary) for path in paths]
    readable = [content for _, content, problem in files if not problem]
    decoded = iter(decoder(readable) if readable else [])
    return [
        (name, None, problem) if problem else (name, (image := next(decoded)).pixels, image.problem)
        for name, _, problem in files
    ]


def _label_batch(
    labeller: Labeller, batch: Sequence[tuple[str, np.ndarray | None, str]], model_version: int, others: int
) -> list[Row]:
    labels = iter(labeller.label([pixels for _, pixels, _ in batch if pixels is not None]))
    rows = []
    for path, pixels, problem in batch:
        label, probabilities = ("", None) if pixels is None else next(labels)
        if probabilities is not None and not np.isfinite(probabilities).all():
            probabilities, problem = None, "the model's answer is not finite"
        if probabilities is None:
            rows.append(Row(path, "", None, model_version, problem, (None,) * others))
        else:
            each = tuple(probabilities.tolist()[:others])
            rows.append(Row(path, label, float(probabilities.max()), model_version, problem, each))
    return rows
