"""Scoring one run again, by run id, run directory or registered model: what `rampline evaluate` does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rampline.data.dataset import PreparedDataset
from rampline.data.preparation import prepare_dataset
from rampline.files import locked, read_json
from rampline.jobs.evaluator import run_evaluation
from rampline.record.checkpoints import Which
from rampline.record.home import Home
from rampline.registry.candidate import Log, directory_of, find_mlflow_run, images_trained_on, open_run_directory
from rampline.tracking.delivery import deliver_run
from rampline.tracking.store import open_tracking


def evaluate_one(run: str, data: str | None, *, which: Which = "best", home: Home, log: Log) -> dict[str, Any]:
    """Score the best or the last checkpoint of one run on its own or on another test set.

    MLflow gets the scores of the best one on the run's own data.

    Args:
        run: an MLflow run id, the path of a run directory, or a registered model such as
            `models:/rampline-digits@champion` (`models:/` may be left out).
        data: a data source such as `folder:PATH`, with some or all of the run's classes. Every image of its test split
            is scored; without one, of its validation split; without either, every image. `None`: the run's own data.
        which: the checkpoint of the best epoch, or the newest one.
        home: where prepared data lies.
        log: gets lines for the user.

    Raises:
        InputError: when there is no such run, or the data does not fit it.
    """
    path, other = Path(run), None
    if path.is_dir():
        directory = open_run_directory(path.absolute())
    else:
        directory = directory_of(find_mlflow_run(open_tracking(home), run), run)
    if data:
        own = PreparedDataset.open(Path(directory.read_identity().dataset))
        # What belongs to the source of the training is left out.
        where = {"source": data, "manual_dir": None, "checksum": None, "mirrors": (), "limit": None, "group": None}
        config = dataclasses.replace(directory.read_config().data, **where, channels=own.image_shape[2])
        scored = prepare_dataset(config, home, scored_classes=own.class_names, log=log)
        if seen := images_trained_on(directory, scored):
            log(
                f"warning: the run was trained on {len(seen):,} of these {scored.splits['test']:,} images; accuracy on "
                "such images is no accuracy on new ones"
            )
        other = scored.directory
    with locked(directory.evaluation_lock, lambda holder: log(f"waiting for {holder}, which scores this run")):
        run_evaluation([directory.path], directory.path / "evaluation.log", other_data=other, which=which)
        is_other = other is not None or which == "last"
        if not is_other:
            deliver_run(open_tracking(home), directory)
        scores = directory.other_evaluation_file if is_other else directory.evaluation_file
        log(f"scores      {scores}")
        return read_json(scores)
