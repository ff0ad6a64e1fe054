"""What the prediction process is asked to do, and what it answers: JSON files beside the model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from rampline.errors import InputError
from rampline.files import read_json, write_json

REQUEST, ANSWER, EVENTS = "request.json", "answer.json", "events.jsonl"
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One folder to label.

    Attributes:
        images: folder of image files, absolute.
        output: where the table goes; its name tells the form.
        aside: the file to write until the table is complete.
        batch_size: images per step of the model, at least 1.
        model_version: what the column of that name says.
        class_names: of the model's logits, in their order.
        image_shape: (height, width, channels) of its images.
        module: with the code of the model's own layers: it is imported first; empty for none.
    """

    images: str
    output: str
    aside: str
    batch_size: int
    model_version: int = 0
    class_names: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] = (0, 0, 0)
    module: str = ""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size} is not allowed: it must be at least 1")
        if Path(self.output).suffix not in SUFFIXES:
            raise InputError(f"output {self.output} is not allowed: its name must end in {' or '.join(SUFFIXES)}")
        if not Path(self.images).is_dir():
            found = "is a file" if Path(self.images).exists() else "does not exist"
            raise InputError(f"images {self.images} {found}: give a folder of image files")

    def write(self, folder: Path) -> None:
        """Write it for the process."""
        write_json(folder / REQUEST, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Request:
        """What the process finds."""
        values = read_json(folder / REQUEST)
        return cls(**values | {name: tuple(values[name]) for name in ("class_names", "image_shape")})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of the images: how many got each label, and how many have none because they cannot be read."""

    counts: dict[str, int]
    unreadable: int

    @property
    def images(self) -> int:
        """Rows of the table."""
        return sum(self.counts.values()) + self.unreadable

    def write(self, folder: Path) -> None:
        """Write it for the process that asked."""
        write_json(folder / ANSWER, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Answer:
        """What came back."""
        return cls(**read_json(folder / ANSWER))
