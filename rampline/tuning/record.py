"""The trials of a search in MLflow: one parent run (`rampline.kind=tune`), a child per trial (`rampline.kind=trial`).

Written when the search is over, so that nothing is left RUNNING by one that was interrupted. What compares executions
looks for `rampline.kind=study` and the children of such a run, and does not see these.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from mlflow.entities import RunTag
from mlflow.tracking import MlflowClient

from rampline.config import flatten
from rampline.home import Home
from rampline.tracking.figures import PARENT_TAG, log_figures, log_params
from rampline.tracking.lifecycle import end
from rampline.tracking.provenance import commit_tags, git_commit, source_tags
from rampline.tracking.store import STORE_ERRORS, TrackingError, experiment_id, first_line, open_tracking
from rampline.tuning.outcome import Outcome
from rampline.tuning.trial import MEASURED, Trial, with_changes


def log_search(outcome: Outcome, study: str, home: Home, *, name: str) -> str:
    """Log a search and its trials; returns the id of the parent run.

    Raises:
        TrackingError: when the store refuses.
    """
    client = open_tracking(home)
    experiment = experiment_id(client, study, home)
    shared = {"rampline.study": study, "rampline.tuned_run": outcome.run, **commit_tags(git_commit())}
    shared |= source_tags(study) | {"mlflow.source.name": f"rampline tune {study}"}
    try:
        began = int(1000 * (time.time() - outcome.seconds))
        tags = {"rampline.kind": "tune", **shared}
        parent = client.create_run(experiment, start_time=began, tags=tags, run_name=name).info.run_id
        log_params(client, parent, flatten(outcome.config))
        log_figures(client, parent, _figures(outcome))
        recommended = [RunTag(f"rampline.recommended.{key}", str(value)) for key, value in outcome.adopted.items()]
        client.log_batch(parent, tags=recommended)
        for trial in outcome.trials:
            _log_trial(client, experiment, trial, outcome, {PARENT_TAG: parent, **shared})
        end(client, parent, "COMPLETE")
    except STORE_ERRORS as error:
        raise TrackingError(f"the trials cannot be logged: {first_line(error)}") from error
    return parent


def _log_trial(client: MlflowClient, experiment: str, trial: Trial, outcome: Outcome, tags: Mapping[str, str]) -> None:
    own = {"rampline.kind": "trial", "rampline.trial_status": trial.status, "rampline.trial_reason": trial.reason}
    run = client.create_run(experiment, tags={**own, **tags}, run_name=trial.label).info.run_id
    config = with_changes(outcome.config, trial.changes)
    batches = {"per_replica_batch_size": config.per_replica_batch_size, "global_batch_size": config.global_batch_size}
    log_params(client, run, {"group": trial.group, **trial.changes, **batches})
    if trial.rounds:
        figures = {
            "images_per_second": trial.rounds.after_median,
            "images_per_second_before": trial.rounds.before_median,
            "ratio": trial.rounds.ratio,
            "ratio_noise": trial.rounds.noise,
            "peak_memory_bytes": trial.rounds.memory_bytes,
        }
        log_figures(client, run, figures)
    end(client, run, "FAILED" if trial.status == "failed" else "COMPLETE", trial.reason or None)


def _figures(outcome: Outcome) -> dict[str, float | None]:
    found, tried = outcome.before_after, [trial for trial in outcome.trials if trial.status == MEASURED]
    figures: dict[str, float | None] = {"trials": len(tried), "seconds": outcome.seconds}
    figures["largest_batch_that_fits"] = outcome.largest_batch_that_fits
    if found:
        figures |= {"images_per_second": found.after_median, "images_per_second_before": found.before_median}
        figures |= {"ratio": found.ratio, "ratio_noise": found.noise}
    return figures
