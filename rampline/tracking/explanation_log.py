"""The explanation of a run in MLflow: its parts as metrics, its verdict as tags, its files as artifacts."""

from __future__ import annotations

from mlflow.entities import RunTag
from mlflow.tracking import MlflowClient

from rampline.explain.explanation import Explanation
from rampline.run_directory import RunDirectory
from rampline.tracking.experiment import NOTE_TAG
from rampline.tracking.figures import log_figures
from rampline.tracking.mlflow_run import find_run
from rampline.tracking.run_artifacts import modified_at
from rampline.tracking.run_note import describe_run
from rampline.tracking.store import STORE_ERRORS, TrackingError, first_line

VERDICT_TAG, BOUND_TAG = "rampline.verdict", "rampline.bound"


def log_explanation(client: MlflowClient, run_directory: RunDirectory) -> None:
    """Log `explanation.json`, and the probes it comes from, on the directory's run; nothing where there is none.

    Raises:
        TrackingError: when MLflow has no run of this directory, or refuses.
    """
    if not run_directory.explanation_file.is_file():
        return
    explanation = Explanation.read(run_directory.explanation_file)
    try:
        run_id = find_run(client, run_directory)
        if run_id is None:
            raise TrackingError(f"{run_directory.path} has no run in MLflow")
        log_figures(
            client, run_id, explanation.figures(), timestamp_seconds=modified_at(run_directory.explanation_file)
        )
        verdict = {VERDICT_TAG: explanation.verdict.sentence, BOUND_TAG: explanation.verdict.bound}
        tags = {**verdict, NOTE_TAG: describe_run(run_directory)}
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        for path in (run_directory.explanation_file, run_directory.probes_file, run_directory.replica_file):
            if path.is_file():
                client.log_artifact(run_id, str(path), "explanation")
    except STORE_ERRORS as error:
        raise TrackingError(f"{run_directory.path} cannot be logged to MLflow: {first_line(error)}") from error
