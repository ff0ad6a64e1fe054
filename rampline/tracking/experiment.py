"""A study's experiment: its description, and the views in which its runs are compared."""

from __future__ import annotations

import time

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.credentials import mask
from rampline.home import Home
from rampline.study import Study
from rampline.tracking.store import TrackingError, experiment_id, first_line
from rampline.tracking.views import renew_views

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
