import pandas as pd
import pytest

from rampline.data.quality import ReportRow, make_report, read_report, write_report
from rampline.errors import DatasetError
from rampline.record.units import write_markdown_table


def row(split, label, name, sha256, size=(10, 20), problem=""):
    width, height = size
    return ReportRow(split, ("007", "NA")[label], label, name, sha256, width, height, problem)


@pytest.fixture
def report():
    rows = [
        row("test", 0, "t/1", "A"),
        row("train", 1, "n/2", "B", (30, 60)),
        row("train", 1, "n/3", "B", (30, 60)),
        row("train", 1, "n/4", "C", (90, 40)),
        row("train", 0, "o/5", "A"),
        row("train", 0, "o/6", "D", (0, 0), "no | image"),
        row("validation", 0, "o/7", "E"),
    ]
    return make_report(rows, source="folder:x", fingerprint="f" * 64)


def test_summary(report):
    assert report.summary.to_dict("records")[1] == {
        "split": "train",
        "class": "NA",
        "examples": 3,
        "min_width": 30,
        "median_width": 30.0,
        "max_width": 90,
        "min_height": 40,
        "median_height": 60.0,
        "max_height": 60,
    }
    counted = report.summary[["split", "class", "examples"]].to_numpy().tolist()
    assert counted == [["train", "007", 1], ["train", "NA", 3], ["validation", "007", 1], ["test", "007", 1]]


def test_undecodable_and_duplicates(report):
    assert report.undecodable.to_numpy().tolist() == [["train", "007", "o/6", "no | image"]]
    across, within = report.repeated("across"), report.repeated("within")
    assert across[["split", "name"]].to_numpy().tolist() == [["train", "o/5"], ["test", "t/1"]]
    assert within["name"].tolist() == ["n/2", "n/3"]
    assert across["group"].nunique() == within["group"].nunique() == 1


def test_an_image_in_two_classes_is_told_of(report):
    leak = "1 image is in more than one split, a leak: o/5 and t/1"
    assert report.duplicate_lines() == [leak, "1 image is more than once in one split: n/2 and n/3"]
    mixed = make_report([row("train", 0, "o/1", "A"), row("train", 1, "n/2", "A")], source="folder:x", fingerprint="0")
    assert mixed.duplicate_lines()[0] == "1 image is in more than one class: n/2 and o/1"


def test_read_gives_what_was_written(report, tmp_path):
    write_report(tmp_path, report)
    again = read_report(tmp_path)
    for table in ("summary", "undecodable", "duplicates"):
        pd.testing.assert_frame_equal(getattr(again, table), getattr(report, table), check_dtype=False)
    assert again.to_markdown() == report.to_markdown()


def test_names_that_look_like_formulas_are_written_as_texts(tmp_path):
    files = [row("train", 0, "=1+1|cmd", "A"), row("train", 0, "-b", "A"), row("train", 0, "@c", "F", (0, 0), "+d")]
    report = make_report(files, source="folder:x", fingerprint="0")
    write_report(tmp_path, report)
    assert '"\'=1+1|cmd"' in (tmp_path / "duplicates.csv").read_text()
    assert (tmp_path / "undecodable.csv").read_text().splitlines()[1] == '"train","007","\'@c","\'+d"'
    assert read_report(tmp_path).to_markdown() == report.to_markdown()


def test_nothing_to_complain_about(tmp_path):
    write_report(tmp_path, make_report([row("train", 0, "a", "A")], source="digits", fingerprint="0"))
    again = read_report(tmp_path)
    assert (len(again.undecodable), len(again.duplicates)) == (0, 0)


def test_markdown(report):
    text = report.to_markdown()
    assert "| train | NA | 3 | 30 | 30 | 90 | 40 | 60 | 60 |" in text
    assert "## Files that do not decode: 1" in text
    assert "no \\| image" in text
    assert "## Images in more than one split (leakage): 1" in text


def test_a_cell_of_markdown_is_one_line():
    table = write_markdown_table(["a"], [["b\nc | d"]])
    assert table.splitlines() == ["| a |", "| --- |", "| b c \\| d |"]


def test_no_report(tmp_path):
    with pytest.raises(DatasetError, match="holds no data report"):
        read_report(tmp_path)
