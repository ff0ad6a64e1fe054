"""The table of predictions: what a spreadsheet sees in it."""

import csv

import keras
import numpy as np
import pyarrow.parquet as pq

from rampline.registry.labelling import Labeller, Row, _label_batch, open_table


def test_labels_and_paths_are_no_formulas_and_figures_stay_figures(tmp_path):
    with open_table(tmp_path / "table.csv", ".csv") as write:
        write(
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
        with open_table(tmp_path / f"table{suffix}", suffix, ["cat", "=dog"]) as write:
            write(rows)
    with open(tmp_path / "table.csv", newline="") as file:
        head, *cells = csv.reader(file)
    assert head == ["path", "label", "probability", "model_version", "error", "p_cat", "p_=dog"]
    assert cells == [["a.png", "cat", "0.75", "3", "", "0.75", "0.25"], ["b.png", "", "", "3", "broken", "", ""]]
    table = pq.read_table(tmp_path / "table.parquet")
    assert table.column_names == head
    assert table["p_=dog"].to_pylist() == [0.25, None]


def test_an_answer_that_is_not_finite_is_no_label():
    image = keras.Input((1, 1, 1), dtype="uint8")
    logit = keras.layers.Flatten()(keras.ops.cast(image, "float32")) * 1e38
    model = keras.Model(image, keras.ops.concatenate([logit, logit * 0], axis=1))
    labeller = Labeller(model, image_shape=(1, 1, 1), class_names=["cat", "dog"], batch_size=2)
    batch = [(f"{value}.png", np.full((1, 1, 1), value, np.uint8), "") for value in (1, 255)]
    assert _label_batch(labeller, batch, 3, 2) == [
        Row("1.png", "cat", 1.0, 3, "", (1.0, 0.0)),
        Row("255.png", "", None, 3, "the model's answer is not finite", (None, None)),
    ]
