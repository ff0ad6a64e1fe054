"""The page of a dataset: its tables, and pictures of each class from all storages."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stored_data import store_here

from rampline.comparison.data_section import PICTURES, _cell, _picture, write_data_page
from rampline.config import DataConfig
from rampline.config.sections import Cache
from rampline.data.quality import read_report
from rampline.record.home import Home

PNG = re.compile(r"data:image/png;base64,([^\"]+)")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two classes of photographs, red and blue; one of the red ones is in both splits, and one twice in its own."""
    for split, count in (("train", 14), ("validation", 3)):
        for name, color in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
            folder = tmp_path / "photographs" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                shade = tuple(min(255, part + i + (40 if split == "validation" else 0)) for part in color)
                Image.new("RGB", (300, 200), shade).save(folder / f"{i}.png")
    train, validation = (tmp_path / "photographs" / split / "red" for split in ("train", "validation"))
    (validation / "0.png").write_bytes((train / "3.png").read_bytes())
    (train / "5.png").write_bytes((train / "4.png").read_bytes())
    return tmp_path / "photographs"


@pytest.mark.parametrize("cache", ["memory", pytest.param("disk", marks=pytest.mark.long), "none"])
def test_each_class_has_a_contact_sheet_whatever_the_storage(cache: Cache, photographs: Path, tmp_path: Path) -> None:
    config = DataConfig(source=f"folder:{photographs}", image_size=16, cache=cache)
    dataset = store_here(config, Home(root=tmp_path / "home"))
    report, page = read_report(dataset.directory), tmp_path / "page.html"
    write_data_page(dataset, report, page)
    html = page.read_text()
    pictures = [Image.open(io.BytesIO(base64.b64decode(png))) for png in PNG.findall(html)]
    assert len(pictures) == 2 * PICTURES
    colors = [np.asarray(picture).mean(axis=(0, 1)) for picture in pictures]
    blue, red = colors[:PICTURES], colors[PICTURES:]
    assert all(color[2] > 150 > color[0] for color in blue)
    assert all(color[0] > 150 > color[2] for color in red)
    assert "1 image is in more than one split, a leak: " in html
    assert "12 of 14 images of the split train" in html
    leak, twice = report.duplicate_lines()
    assert leak.startswith("1 image is in more than one split, a leak: ")
    assert leak.endswith("red/0.png")
    assert twice.startswith("1 image is more than once in one split: ")


def test_an_image_that_pillow_refuses_has_no_picture(photographs: Path, tmp_path: Path) -> None:
    file = photographs / "train" / "red" / "0.png"
    Image.open(file).save(file, exif=b"Exif\0\0neither of both byte orders")
    config = DataConfig(source=f"folder:{photographs}", image_size=16, cache="none")
    dataset, page = store_here(config, Home(root=tmp_path / "home")), tmp_path / "page.html"
    assert dataset.undecodable == 0
    write_data_page(dataset, read_report(dataset.directory), page)
    assert len(PNG.findall(page.read_text())) == 2 * PICTURES - 1
    assert "11 of 14 images of the split train" in page.read_text()


def test_an_image_of_16_bits_is_shown_as_training_sees_it(photographs: Path, tmp_path: Path) -> None:
    file = photographs / "train" / "red" / "0.png"
    Image.fromarray(np.full((20, 30), 0x40FE, np.uint16)).save(file)
    config = DataConfig(source=f"folder:{photographs}", image_size=16, cache="none")
    dataset = store_here(config, Home(root=tmp_path / "home"))
    picture = _picture(dataset, "train", dataset.paths("train").index("train/red/0.png"), "")
    assert picture
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.png)))) == 0x40).all()


@pytest.mark.parametrize(
    ("value", "shown"), [(1_281_170, "1,281,170"), (1_281_170.0, "1,281,170"), (0.25, "0.25"), (np.inf, "inf")]
)
def test_whole_numbers_are_written_whole(value: float, shown: str) -> None:
    assert _cell(value) == shown


def test_the_command_prepares_and_names_the_page(rampline, home) -> None:
    shown = rampline("data", "digits", "--set", "data.limit=20")
    assert shown.returncode == 0
    assert "train: 200 images: 0 (20), 1 (20)" in shown.stdout
    (page,) = home.glob("reports/digits/data/*.html")
    assert page.name in shown.stdout
