"""The table of predictions: what a spreadsheet sees in it."""

import csv

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
