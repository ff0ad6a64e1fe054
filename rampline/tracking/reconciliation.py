"""The one way to write to a run of MLflow: it is brought to what a record says, and nothing is written twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mlflow.entities import DatasetInput, LoggedModelOutput, LoggedModelStatus, Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from rampline.credentials import mask
from rampline.files import json_digest, sha256_of
from rampline.record.delivery_state import RUNNING, STATUSES
from rampline.tracking.store import param_text

STATUS_TAG, PROCESS_TAG, FAILURE_TAG = "rampline.status", "rampline.process", "rampline.failure"
PARENT_TAG, NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"
# MLflow's limit for a request. A moment is never split over two: what MLflow has of it, it has whole.
POINTS_AT_ONCE = 1000
DATASET, MODEL = "(dataset)", "(model)"
MODEL_NAME = "model"
DIGEST_TAG, METADATA_TAG = "rampline.sha256", "rampline.metadata_sha256"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Figures of one moment; one that is not finite is left out.

    Attributes:
        figures: by their names in MLflow.
        time: Unix seconds.
        series: the metric that every moment of an epoch, or of a role, has: its history says which ones MLflow has.
            Empty for figures that a run has once; another value becomes the latest one.
        step: in that series.
    """

    figures: Mapping[str, float | None]
    time: float
    series: str = ""
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a run of MLflow should hold; what a record does not name stays as it is.

    Attributes:
        status: `RUNNING`, or how it ended: a key of `STATUSES`; empty if that stays.
        ended: Unix seconds of its end; now by default.
        params: one that MLflow has already stays.
        tags: `None` for one that must not be there.
        moments: in the order of their steps.
        artifacts: files by their path in MLflow.
        dataset: the input.
        model: folder of a saved model.
    """

    status: str = ""
    ended: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str | None] = field(default_factory=dict)
    moments: Sequence[Moment] = ()
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    dataset: DatasetInput | None = None
    model: Path | None = None


def ending(status: str, failure: str | None = None) -> dict[str, str | None]:
    """The tags that say how a run ended, or that it is running."""
    return {STATUS_TAG: status, FAILURE_TAG: failure}


@dataclass
class Known:
    """What a run has in MLflow, as far as MLflow was asked or has acknowledged it.

    A request that failed may have been carried out, so after an error it is asked anew. Should MLflow commit a moment
    after that, it still holds every point once: points carry the time of their event, a repeated one is identical, and
    all of (key, timestamp, step, run, value, is_nan) is the primary key of MLflow's table `metrics`; its store leaves
    out what it has (mlflow/store/tracking/dbmodels/models.py `SqlMetric`, sqlalchemy_store.py `_log_metrics`, 3.17).

    Attributes:
        status: MLflow's.
        params: names.
        figures: latest value of every metric by name.
        files: of what was uploaded, by its path in MLflow, a stamp that another version of it would not have.
        times: by series and step, when the latest point was made, in milliseconds; filled as it is asked for.
    """

    run_id: str
    status: str
    params: set[str]
    tags: dict[str, str]
    figures: dict[str, float]
    files: dict[str, str]
    times: dict[str, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, files: Mapping[str, str] | None = None) -> Known:
        """What MLflow says of a run; of files it is only known what was uploaded from here."""
        data = run.data
        params, tags, figures = set(data.params), dict(data.tags), dict(data.metrics)
        return cls(run.info.run_id, run.info.status, params, tags, figures, dict(files or {}))

    @classmethod
    def ask(cls, client: MlflowClient, run_id: str) -> Known:
        """Ask MLflow."""
        return cls.of(client.get_run(run_id))

    def is_ahead_of(self, status: str) -> bool:
        """Whether another machine has completed the run, while the folder here says that it ended otherwise."""
        return self.status == STATUSES["COMPLETE"] and status not in ("COMPLETE", RUNNING)

    def lacks(self, client: MlflowClient, moment: Moment) -> bool:
        """Whether MLflow has no such step of the series, or that of a lost attempt, which was made again."""
        if moment.series not in self.times:
            points = client.get_metric_history(self.run_id, moment.series) if moment.series in self.figures else []
            in_order = sorted(points, key=lambda point: point.timestamp)
            self.times[moment.series] = {point.step: point.timestamp for point in in_order}
        return self.times[moment.series].get(moment.step, -1) < _milliseconds(moment)


def reconcile(client: MlflowClient, record: Record, known: Known) -> list[Moment]:
    """Write what a run lacks of a record; doing it again changes nothing.

    `known` is kept up to date. A run is only told to be FINISHED once MLflow has the rest, and any other end first.

    Returns:
        the moments of series that were new.
    """
    _log_words(client, record, known)
    if record.status != "COMPLETE":
        _set_status(client, record, known)
    new = [moment for moment in record.moments if not moment.series or known.lacks(client, moment)]
    for moments, metrics in _batches(new, known):
        client.log_batch(known.run_id, metrics=metrics)
        known.figures.update((metric.key, metric.value) for metric in metrics)
        for moment in (moment for moment in moments if moment.series):
            known.times[moment.series][moment.step] = _milliseconds(moment)
    _upload(client, record, known)
    if record.status == "COMPLETE":
        _set_status(client, record, known)
    return [moment for moment in new if moment.series]


def _log_words(client: MlflowClient, record: Record, known: Known) -> None:
    params = [Param(name, param_text(value)) for name, value in record.params.items() if name not in known.params]
    wanted = {name: mask(text) for name, text in record.tags.items() if text is not None}
    tags = {name: text for name, text in wanted.items() if known.tags.get(name) != text}
    if params or tags:
        client.log_batch(known.run_id, params=params, tags=[RunTag(name, text) for name, text in tags.items()])
        known.params.update(param.key for param in params)
        known.tags.update(tags)
    for name in record.tags.keys() & known.tags.keys() - wanted.keys():
        client.delete_tag(known.run_id, name)
        del known.tags[name]


def _set_status(client: MlflowClient, record: Record, known: Known) -> None:
    status = STATUSES.get(record.status, record.status)
    if status in ("", known.status):
        return
    if status == RUNNING:
        client.update_run(known.run_id, status=RUNNING)
    else:
        ended = None if record.ended is None else int(1000 * record.ended)
        client.set_terminated(known.run_id, status=status, end_time=ended)
    known.status = status


def _batches(moments: Sequence[Moment], known: Known) -> Iterator[tuple[list[Moment], list[Metric]]]:
    """Requests, each of whole moments and the points of them that are to be written."""
    together: tuple[list[Moment], list[Metric]] = [], []
    for moment in moments:
        metrics = [
            metric for metric in make_metrics(moment) if moment.series or known.figures.get(metric.key) != metric.value
        ]
        if together[1] and len(together[1]) + len(metrics) > POINTS_AT_ONCE:
            yield together
            together = [], []
        if metrics:
            together[0].append(moment)
            together[1].extend(metrics)
    if together[1]:
        yield together


def make_metrics(moment: Moment) -> list[Metric]:
    """MLflow's points of the figures that are finite."""
    finite = {
        name: float(value) for name, value in moment.figures.items() if value is not None and math.isfinite(value)
    }
    return [Metric(name, value, _milliseconds(moment), moment.step) for name, value in finite.items()]


def _milliseconds(moment: Moment) -> int:
    return int(1000 * moment.time)


def _upload(client: MlflowClient, record: Record, known: Known) -> None:
    for name, file in record.artifacts.items():
        if known.files.get(name) != (stamp := _stamp(file)):
            folder = str(PurePosixPath(name).parent)
            client.log_artifact(known.run_id, str(file), None if folder == "." else folder)
            known.files[name] = stamp
    if record.dataset and known.files.get(DATASET) != (digest := record.dataset.dataset.digest):
        # MLflow knows a dataset by name and digest, and keeps what it was told of it first
        # (mlflow/store/tracking/sqlalchemy_store.py `_log_inputs_impl`, 3.17).
        client.log_inputs(known.run_id, [record.dataset])
        known.files[DATASET] = digest
    if record.model and known.files.get(MODEL) != (stamp := _stamp(record.model / "MLmodel")):
        log_model(client, known.run_id, record.model)
        known.files[MODEL] = stamp


def log_model(client: MlflowClient, run_id: str, folder: Path) -> str:
    """Log what `mlflow.keras.save_model` wrote as the model of a run in any state (`runs:/RUN_ID/model`).

    The same model is not logged twice. Returns the id of the MLflow model.
    """
    from mlflow.models import Model  # half a second, which no run needs before it trains

    model = folder / "data" / "model.keras"
    tags = {DIGEST_TAG: sha256_of(model), METADATA_TAG: json_digest(Model.load(folder).metadata)}
    run = client.get_run(run_id)
    for output in run.outputs.model_outputs if run.outputs else []:
        logged = client.get_logged_model(output.model_id)
        if tags.items() <= logged.tags.items() and logged.status == LoggedModelStatus.READY:
            return logged.model_id
    model = client.create_logged_model(
        run.info.experiment_id,
        name=MODEL_NAME,
        source_run_id=run_id,
        tags=tags,
        params=run.data.params,
        model_type="keras",
    )
    client.log_model_artifacts(model.model_id, str(folder))
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return model.model_id


def _stamp(file: Path) -> str:
    status = file.stat()
    return f"{status.st_mtime_ns}-{status.st_size}"
