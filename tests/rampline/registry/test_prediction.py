"""The champion's labels of a folder of files: those of the evaluation, and a row for what cannot be read."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from trained_runs import MODEL, STUDY, aliases, delete_model, write_test_images

from rampline.data.archives import Boundary
from rampline.errors import InputError, RunFailed
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry.labelling import read_image
from rampline.registry.prediction import predict_folder
from rampline.registry.promotion import promote
from rampline.tracking.store import open_tracking

pytestmark = pytest.mark.slow
COLUMNS = ["path", "label", "probability", "model_version", "error"]


@pytest.fixture(scope="module")
def home(rampline_home: Path) -> Home:
    return Home(root=rampline_home)


@pytest.fixture(scope="module")
def champion(trained: Path, home: Home) -> Iterator[RunDirectory]:
    """The run whose model is the second version, and the champion."""
    client = open_tracking(home)
    promote(str(trained / "fair"), home=home, log=print)
    promote(str(trained / "better"), home=home, log=print)
    assert aliases(client) == {"champion": 2, "previous-champion": 1}
    yield RunDirectory(trained / "better")
    delete_model(client)


def read_table(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    texts: Any = dict.fromkeys(("path", "label", "error"), str)
    return pd.read_csv(path, dtype=texts, keep_default_na=False, na_values={"probability": [""]})


def test_labels_are_those_of_the_evaluation(champion: RunDirectory, home: Home, tmp_path: Path) -> None:
    """Of 360 images in batches of 50, with files between them that cannot be read."""
    images = tmp_path / "images"
    paths = write_test_images(champion, images)
    (images / "even" / "00001.png").write_text("no image")
    (images / "empty.jpg").touch()
    (images / "outside.png").symlink_to(champion.result_file)
    (images / "again").symlink_to(images)
    (images / "readme.txt").write_text("left alone")
    os.mkfifo(images / "pipe.png")
    broken = ["again", "empty.jpg", "even/00001.png", "outside.png", "pipe.png"]

    made = predict_folder(STUDY, images, home=home, output=tmp_path / "labels.parquet", batch_size=50, with_all=True)
    table = read_table(made.output)
    each = [f"p_{digit}" for digit in range(10)]
    assert list(table.columns) == [*COLUMNS, *each]
    assert (made.model, made.model_version, made.unreadable, made.images) == (MODEL, 2, 5, len(paths) + 5)
    assert set(table["model_version"]) == {2}
    assert made.sentence().startswith(f"{len(paths)} images labelled by {MODEL} version 2, 5 without a label: ")

    bad = table[table["error"] != ""]
    assert sorted(Path(path).relative_to(images).as_posix() for path in bad["path"]) == broken
    assert set(bad["label"]) == {""}
    assert bad[["probability", *each]].isna().all(axis=None)

    good = table[table["error"] == ""].set_index("path").loc[[str(path) for path in paths]]
    evaluated = pd.read_csv(champion.path / "predictions.csv")
    assert list(good["label"].astype(int)) == list(evaluated["prediction"])
    assert good["probability"].to_numpy() == pytest.approx(evaluated["probability"].to_numpy(), abs=1e-5)
    assert good[each].sum(axis=1).to_numpy() == pytest.approx(1.0, abs=1e-5)
    assert good[each].max(axis=1).to_numpy() == pytest.approx(good["probability"].to_numpy())
    assert made.counts == {name: int(number) for name, number in good["label"].value_counts().sort_index().items()}


def test_a_link_into_a_folder_that_may_not_be_looked_into_has_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, look = tmp_path / "images" / "1.png", os.stat
    link.parent.mkdir()
    link.symlink_to(tmp_path / "theirs" / "1.png")

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if path == link:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)  # root, which may run the tests, may look into every folder
    name, content, problem = read_image(link, Boundary(link.parent))
    assert (name, content) == (str(link), b"")
    assert problem.startswith(f"{link} leads to {tmp_path}/theirs/1.png, outside ")


def test_a_photograph_is_turned_upright_before_it_is_labelled(
    champion: RunDirectory, home: Home, tmp_path: Path
) -> None:
    upright = Image.open(write_test_images(champion, tmp_path / "test")[0])
    on_its_side, exif, images = upright.transpose(Image.Transpose.ROTATE_90), Image.Exif(), tmp_path / "images"
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    images.mkdir()
    upright.save(images / "upright.png")
    on_its_side.save(images / "turned.png", exif=exif)
    on_its_side.save(images / "without-exif.png")
    table = read_table(predict_folder(STUDY, images, home=home, output=tmp_path / "labels.csv").output)
    found = {Path(row["path"]).stem: (row["label"], row["probability"]) for row in table.to_dict("records")}
    assert found["turned"] == found["upright"]
    assert found["without-exif"] != found["upright"]


def test_an_empty_folder_is_an_empty_table_in_the_home(champion: RunDirectory, home: Home, tmp_path: Path) -> None:
    before = set((home.predictions / STUDY).glob("*"))  # of tests before it in this session
    made = predict_folder(STUDY, tmp_path, home=home)
    assert made.output.parent == home.predictions / STUDY
    assert made.output.read_text() == ",".join(f'"{column}"' for column in COLUMNS) + "\n"
    assert (made.images, list(made.counts)) == (0, [str(digit) for digit in range(10)])
    assert set(made.output.parent.iterdir()) == {*before, made.output}


@pytest.mark.usefixtures("champion")
def test_what_is_wrong_is_told_before_anything_is_written(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, message in {
        (STUDY, ""): "images is empty: give the folder",
        (STUDY, str(tmp_path / "nosuch")): "nosuch does not exist",
        (STUDY, __file__): "is a file: give a folder",
        ("nosuch", str(tmp_path)): "no model rampline-nosuch@champion",
    }.items():
        with pytest.raises(InputError, match=message):
            predict_folder(*arguments, home=home, output=tmp_path / "out.csv")
    (folder := tmp_path.with_name("folder.csv")).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for output, path in ((folder, folder), ("~/out.txt", tmp_path / "out.txt")):
        with pytest.raises(InputError, match=f"output {re.escape(str(path))} is not allowed: it must end in"):
            predict_folder(STUDY, tmp_path, home=home, output=output)
    with pytest.raises(InputError, match="must be at least 1"):
        predict_folder(STUDY, tmp_path, home=home, batch_size=0)
    assert list(tmp_path.iterdir()) == []


def test_the_log_of_a_failure_takes_no_file_of_the_user_s(champion: RunDirectory, home: Home, tmp_path: Path) -> None:
    write_test_images(champion, tmp_path / "images")
    (tmp_path / "labels.log").write_text("mine")
    with pytest.raises(RunFailed) as failed:
        predict_folder(STUDY, tmp_path / "images", home=home, output=tmp_path / "labels.csv", batch_size=10**12)
    assert (tmp_path / "labels.log").read_text() == "mine"
    assert f"(log: {home.predictions / STUDY}/" in str(failed.value)
