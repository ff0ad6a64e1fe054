"""The table of predictions: what a spreadsheet sees in it."""

import csv

import pyarrow.parquet as pq

from rampline.registry.labelling import Row, open_table


def test_labels_and_paths_are_no_formulas_and_figures_stay_figures(tmp_path):
    with open_table(tmp_path / "table.csv", ".csv") as table:
        table.write(
            [
                Row("=1+1.png", "-cmd", 0.25, 3, ""),
                Row("a.png", "", None, 3, "@broken\r=1"),
                Row("b", "-1", 1e-7, 3, ""),
            ]
        )
    with open(tmp_path / "table.csv", newline="") as file:
        _, *rows = csv.reader(file)
    assert rows == [
        ["'=1+1.png", "'-cmd", "0.25", "3", ""],
        ["a.png", "", "", "3", "'@broken\r=1"],
        ["b", "-1", "1e-07", "3", ""],
    ]


def test_each_class_may_have_a_column(tmp_path):
    rows = [Row("a.png", "cat", 0.75, 3, "", (0.75, 0.25)), Row("b.png", "", None, 3, "broken", (None, None))]
    for suffix in (".csv", ".parquet"):
        with open_table(tmp_path / f"table{suffix}", suffix, ["cat", "=dog"]) as table:
            table.write(rows)
    with open(tmp_path / "table.csv", newline="") as file:
        head, *cells = csv.reader(file)
    assert head == ["path", "label", "probability", "model_version", "error", "p_cat", "p_=dog"]
    assert cells == [["a.png", "cat", "0.75", "3", "", "0.75", "0.25"], ["b.png", "", "", "3", "broken", "", ""]]
    table = pq.read_table(tmp_path / "table.parquet")
    assert table.column_names == head
    assert table["p_=dog"].to_pylist() == [0.25, None]
