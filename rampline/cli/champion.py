"""`rampline evaluate`, `promote` and `predict`: a run is scored, its model becomes the champion, and labels images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from rampline.cli.console import line_console, make_table
from rampline.progress import describe
from rampline.record.checkpoints import Which
from rampline.record.home import Home
from rampline.record.units import NONE, write_accuracy, write_count

MOST_CLASSES = 40  # rows


def promote(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN_ID", help="MLflow run id, run directory, or a model such as rampline-STUDY@challenger."
        ),
    ],
    alias: Annotated[
        Literal["champion", "challenger"],
        typer.Option("--as", help="A challenger may be less accurate than the champion."),
    ] = "champion",
) -> None:
    """Register a run's model in MLflow as rampline-STUDY, if it is complete, sound and not worse than the champion."""
    from rampline.registry.promotion import promote as promote_run  # MLflow: too slow for the other commands

    console = line_console()
    promotion = promote_run(run_id, alias=alias, home=Home.from_environment(), log=console.print)
    console.print(promotion.sentence())
    console.print(f"model  models:/{promotion.model}@{promotion.alias}")


def predict(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="Study, or its file, whose champion in MLflow labels the images.")
    ],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of image files; sub-folders are read too.")],
    output: Annotated[
        str, typer.Option(metavar="FILE", help="Table, .csv or .parquet; by default in RAMPLINE_HOME/predictions.")
    ] = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step of the model.")] = 256,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class, in columns p_CLASS.")
    ] = False,
) -> None:
    """Label the images of a folder with a study's champion, into a CSV or Parquet file."""
    from rampline.registry.prediction import predict_folder  # MLflow: too slow for the other commands

    console = line_console()
    home = Home.from_environment()
    made = predict_folder(
        study, folder, home=home, output=output, batch_size=batch_size, with_all=probabilities, log=console.print
    )
    for label, count in made.counts.items():
        console.print(f"{label:<12}  {count:,}")
    console.print(made.sentence())


def evaluate(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN_ID", help="MLflow run id, run directory, or a model such as rampline-STUDY@champion."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Other images: digits, tfds:NAME, folder:PATH, url:URL or csv:PATH; their test split, else "
            "validation, else all.",
        ),
    ] = None,
    checkpoint: Annotated[
        Which, typer.Option(help="That of the best epoch, or the last one, whose scores are kept apart.")
    ] = "best",
) -> None:
    """Score a run's best checkpoint on a test set, by default that of its own data: per class, and with intervals."""
    from rampline.registry.scoring import evaluate_one  # brings in MLflow: too slow for the other commands

    console = line_console()
    scores = evaluate_one(run_id, data, which=checkpoint, home=Home.from_environment(), log=console.print)
    console.print(f"checkpoint  {scores['checkpoint']} ({scores['which']}, epoch {scores['epoch']})")
    console.print(describe({"event": "evaluated", **scores}, epochs=None))
    console.print(_class_table(scores), soft_wrap=False)
    for line in _summary(scores):
        console.print(line)


def _class_table(scores: Mapping[str, Any]) -> Table:
    """A row per class, the lowest recall on top."""
    from rampline.tracking.artifacts import read_confusion_matrix  # NumPy: too slow for the other commands

    figures = ("images", "precision", "recall (95 % interval)", "F1 (95 % interval)")
    table = make_table("class", *figures, numbers=figures)
    # Of what is too wide, names are broken, and figures are not.
    table.columns[0].overflow = "fold"
    for number, column in enumerate(table.columns):
        column.no_wrap = number > 0
    report, intervals = scores["classification_report"], scores["intervals"]
    answers = read_confusion_matrix(scores).sum(axis=0).tolist()
    rows = list(zip(scores["class_names"], answers, intervals["recall"], intervals["f1-score"], strict=True))
    rows.sort(key=lambda row: (row[2] is None, report[row[0]]["recall"]))
    for name, answered, recall, f1 in rows[:MOST_CLASSES]:
        found = report[name]
        table.add_row(
            Text(name if name.isprintable() else repr(name)),
            write_count(found["support"]),
            f"{found['precision']:.3f}" if answered else NONE,
            _with_interval(found["recall"], recall, ".3f") if recall else NONE,
            _with_interval(found["f1-score"], f1, ".3f") if recall else NONE,
        )
    if len(rows) > MOST_CLASSES:
        table.caption = f"… and {len(rows) - MOST_CLASSES} classes of a higher recall, or without images"
    return table


def _summary(scores: Mapping[str, Any]) -> list[str]:
    intervals = scores["intervals"]
    accuracy, balanced = (
        _with_interval(scores[name], intervals[name], ".4f") for name in ("test_accuracy", "test_balanced_accuracy")
    )
    lines = [f"accuracy           {accuracy}", f"balanced accuracy  {balanced}: the mean recall of the classes"]
    if scores["test_calibration_error"] is not None:
        error, certainty = write_accuracy(scores["test_calibration_error"]), write_accuracy(scores["mean_certainty"])
        lines.append(f"calibration error  {error}: mean certainty {certainty}, accuracy {scores['test_accuracy']:.4f}")
    return lines


def _with_interval(value: float, bounds: Sequence[float] | None, form: str) -> str:
    """`0.972 (0.917 to 1.000)`; the value alone where it has no interval."""
    return f"{value:{form}}" + (f" ({bounds[0]:{form}} to {bounds[1]:{form}})" if bounds else "")
