"""A study in MLflow: the experiment with its description and views, and the run of each execution."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.tracking import MlflowClient

from rampline.credentials import mask
from rampline.record.delivery_state import GONE, RUNNING
from rampline.record.home import Home
from rampline.record.provenance import (
    commit_tags,
    environment,
    git_commit,
    process_identity,
    process_is_gone,
    source_tags,
)
from rampline.study import Study
from rampline.tracking.pages import renew_views
from rampline.tracking.reconciliation import NOTE_TAG, PROCESS_TAG, STATUS_TAG, Known, Record, ending, reconcile
from rampline.tracking.store import create_run, experiment_id, find_runs, tracking_errors

# Of an execution whose changes against its history a flow run of a deployment has told.
TOLD_TAG = "rampline.changes_told"
# Characters; the server checks for more, a PostgreSQL behind it refuses more.
LONGEST_TAG = 5000
# MLflow then shows pages of training, not those for language models.
FOLDER_TAG = "rampline.execution_dir"
KIND_TAG, KIND = "mlflow.experimentKind", "custom_model_development"


def open_experiment(client: MlflowClient, study: Study, home: Home, *, execution: str) -> str:
    """Id of the experiment of a study, see `experiment_id`, described and with views of its runs.

    What a person has written there in its place stays. `execution` is the one that begins: a view shows the latest.

    Raises:
        TrackingError: when the store refuses.
    """
    experiment = experiment_id(client, study.name, home)
    with tracking_errors(f"MLflow experiment {study.name} cannot be described"):
        tags = client.get_experiment(experiment).tags
        wanted = {KIND_TAG: KIND, NOTE_TAG: describe_study(study)}
        new = {name: value for name, value in wanted.items() if value and name not in tags}
        for name, value in {**new, **renew_views(tags, execution, time.time())}.items():
            client.set_experiment_tag(experiment, name, value)
    return experiment


def describe_study(study: Study) -> str:
    """What a study is about, in markdown, cut at `LONGEST_TAG`; MLflow shows a line, all of it on a click."""
    parts = [
        study.description,
        study.teaches,
        study.published_source and f"Published figures: {study.published_source}",
    ]
    return mask("\n\n".join(part.strip() for part in parts if part.strip()))[:LONGEST_TAG]


def study_tags(study: Study, execution: Path) -> dict[str, str]:
    """What the comparison needs to know of a study, and a description until there is one, as tags of its run; and where
    its folder is.

    What the study does not say has no tag.
    """
    lines = [f"- **{run.name}**" + (f": {run.description}" if run.description else "") for run in study.runs]
    tags = {
        FOLDER_TAG: str(execution.absolute()),
        "rampline.reference": study.reference,
        "rampline.accuracy_tolerance": f"{study.accuracy_tolerance:g}",
        "rampline.deadline_hours": "" if study.deadline_hours is None else f"{study.deadline_hours:g}",
        "rampline.published_source": study.published_source,
        NOTE_TAG: mask("\n".join([f"Trains {len(study.runs)} runs:", "", *lines])),
    }
    return {name: text for name, text in tags.items() if text}


def begin_run(
    client: MlflowClient,
    experiment: str,
    *,
    study: str,
    execution: str,
    tags: Mapping[str, str] | None = None,
    began: float | None = None,
) -> str:
    """Begin the run of a new execution, and return its id; runs of killed processes are closed first.

    Args:
        client, experiment: the store, and the id of the study's experiment there.
        study, execution: their names.
        tags: on top of those every execution has, such as `rampline.reference` and `rampline.command`.
        began: Unix seconds of its begin; now by default.

    Raises:
        TrackingError: when MLflow refuses.
    """
    fixed = {
        PROCESS_TAG: process_identity(),
        STATUS_TAG: RUNNING,
        "rampline.kind": "study",
        "rampline.study": study,
        "rampline.execution": execution,
        **commit_tags(git_commit()),
        **source_tags(study),
        **{f"rampline.environment.{name}": value for name, value in environment().items()},
        **{name: mask(value)[:LONGEST_TAG] for name, value in (tags or {}).items()},
    }
    with tracking_errors(f"MLflow run of execution {execution} cannot be begun"):
        end_abandoned(client, experiment)
        began = time.time() if began is None else began
        return create_run(client, experiment, name=execution, tags=fixed, began=began).info.run_id


def continue_run(client: MlflowClient, run_id: str) -> None:
    """Take over the run of an execution that is continued, in the name of this process.

    Raises:
        TrackingError: when MLflow has no such run, or it was deleted there.
    """
    with tracking_errors(f"MLflow run {run_id} cannot be continued"):
        end_abandoned(client, client.get_run(run_id).info.experiment_id)
        tags = {**ending(RUNNING), PROCESS_TAG: process_identity()}
        reconcile(client, Record(status=RUNNING, tags=tags), Known.ask(client, run_id))


def end_abandoned(client: MlflowClient, experiment: str) -> None:
    """Set KILLED what processes of this machine left RUNNING when they were killed.

    The watchdog does that at the moment of a `kill -9`; where it was killed too, the next execution does. Runs of other
    machines are left alone, and so are those of other containers that live.
    """
    # All are listed first: the next page would be another one once a run of this page has ended.
    for run in list(find_runs(client, experiment, "attributes.status = 'RUNNING'")):
        tags = run.data.tags
        folder = Path(tags.get("rampline.run_dir") or tags.get(FOLDER_TAG) or os.devnull)
        if process_is_gone(tags.get(PROCESS_TAG, ""), folder):
            reconcile(client, Record(status="KILLED", tags=ending("KILLED", GONE)), Known.of(run))
