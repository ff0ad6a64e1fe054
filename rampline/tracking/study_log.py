"""The parent run: one execution of a study in MLflow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities import RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.credentials import mask
from rampline.record.home import Home
from rampline.record.provenance import commit_tags, environment, git_commit, process_identity, source_tags
from rampline.study import Study, StudyRun
from rampline.tracking.lifecycle import PROCESS_TAG, end, end_abandoned, end_running_children, take_over
from rampline.tracking.pages import renew_views
from rampline.tracking.store import STORE_ERRORS, TrackingError, experiment_id, first_line, log_figures, log_params

NOTE_TAG = "mlflow.note.content"
# Characters; the server checks for more, a PostgreSQL behind it refuses more.
LONGEST_TAG = 5000
# MLflow then shows pages of training, not those for language models.
KIND_TAG, KIND = "mlflow.experimentKind", "custom_model_development"


def open_experiment(client: MlflowClient, study: Study, home: Home, *, execution: str) -> str:
    """The experiment of a study, see `experiment_id`, described and with views of its runs.

    What a person has written there in its place stays.

    Args:
        client: of the store.
        study: whose name, description and purpose it gets.
        home: where artifacts go if the store has no place of its own for them.
        execution: the one that begins, which the view of the latest shows.

    Returns:
        its id.

    Raises:
        TrackingError: when the store refuses.
    """
    experiment = experiment_id(client, study.name, home)
    try:
        tags = client.get_experiment(experiment).tags
        wanted = {KIND_TAG: KIND, NOTE_TAG: describe_study(study)}
        new = {name: value for name, value in wanted.items() if value and name not in tags}
        for name, value in {**new, **renew_views(tags, execution, time.time())}.items():
            client.set_experiment_tag(experiment, name, value)
    except MlflowException as error:
        raise TrackingError(f"MLflow experiment {study.name} cannot be described: {first_line(error)}") from error
    return experiment


def describe_study(study: Study) -> str:
    """What a study is about, in markdown, cut at `LONGEST_TAG`; MLflow shows a line, all of it on a click."""
    parts = [
        study.description,
        study.teaches,
        study.published_source and f"Published figures: {study.published_source}",
    ]
    return mask("\n\n".join(part.strip() for part in parts if part.strip()))[:LONGEST_TAG]


def study_tags(study: Study) -> dict[str, str]:
    """What the comparison needs to know of a study, and a description until there is one, as tags of its run.

    What the study does not say has no tag.
    """
    tags = {
        "rampline.reference": study.reference,
        "rampline.accuracy_tolerance": f"{study.accuracy_tolerance:g}",
        "rampline.deadline_hours": "" if study.deadline_hours is None else f"{study.deadline_hours:g}",
        "rampline.published_source": study.published_source,
        NOTE_TAG: mask("\n".join([f"Trains {len(study.runs)} runs:", "", *(_line_of(run) for run in study.runs)])),
    }
    return {name: text for name, text in tags.items() if text}


def _line_of(run: StudyRun) -> str:
    return f"- **{run.name}**" + (f": {run.description}" if run.description else "")


@dataclass(frozen=True)
class StudyLog:
    """What an execution of a study writes to its MLflow run."""

    client: MlflowClient
    run_id: str

    @classmethod
    def open(
        cls,
        client: MlflowClient,
        experiment_id: str,
        *,
        study: str,
        execution: str,
        tags: Mapping[str, str] | None = None,
        began_seconds: float | None = None,
    ) -> StudyLog:
        """Begin the run of a new execution; runs of earlier ones whose process was killed are closed first.

        Args:
            client: of the store.
            experiment_id: of the study.
            study: its name.
            execution: its name.
            tags: on top of those every execution has, such as `rampline.reference` and `rampline.command`.
            began_seconds: Unix time of its begin; now by default.

        Raises:
            TrackingError: when MLflow refuses.
        """
        fixed = {
            PROCESS_TAG: process_identity(),
            "rampline.kind": "study",
            "rampline.study": study,
            "rampline.execution": execution,
            **commit_tags(git_commit()),
            **source_tags(study),
            **{f"rampline.environment.{name}": value for name, value in environment().items()},
            **{name: mask(value) for name, value in (tags or {}).items()},
        }
        try:
            end_abandoned(client, experiment_id)
            began = None if began_seconds is None else int(1000 * began_seconds)
            run = client.create_run(experiment_id, start_time=began, tags=fixed, run_name=execution)
            take_over(client, run.info.run_id)
        except STORE_ERRORS as error:
            raise TrackingError(f"MLflow run of execution {execution} cannot be begun: {first_line(error)}") from error
        return cls(client, run.info.run_id)

    @classmethod
    def reopen(cls, client: MlflowClient, run_id: str) -> StudyLog:
        """Take over the run of an execution that is continued.

        Raises:
            TrackingError: when MLflow has no such run, or it was deleted there.
        """
        try:
            run = client.get_run(run_id)
            end_abandoned(client, run.info.experiment_id)
            take_over(client, run_id)
        except STORE_ERRORS as error:
            raise TrackingError(f"MLflow run {run_id} cannot be continued: {first_line(error)}") from error
        return cls(client, run_id)

    def log_comparison(
        self,
        *,
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        files: Iterable[Path],
    ) -> None:
        """Log the comparison's summary and files; after a second comparison the newer figures count."""
        log_params(self.client, self.run_id, params)
        log_figures(self.client, self.run_id, metrics)
        self.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        for path in files:
            self.client.log_artifact(self.run_id, str(path))

    def close(
        self, status: str, failure: str | None = None, *, ends: Mapping[str, tuple[str, str | None]] | None = None
    ) -> None:
        """End the execution as `COMPLETE`, `FAILED`, `KILLED` or `PREEMPTED`, and its runs that still are RUNNING.

        Args:
            status: of the execution.
            failure: why it is not complete, one line.
            ends: see `end_running_children`.

        Raises:
            TrackingError: when MLflow cannot be reached.
        """
        try:
            end_running_children(self.client, self.client.get_run(self.run_id), ends or {})
            end(self.client, self.run_id, status, failure)
        except STORE_ERRORS as error:
            raise TrackingError(f"MLflow run {self.run_id} cannot be closed: {first_line(error)}") from error
