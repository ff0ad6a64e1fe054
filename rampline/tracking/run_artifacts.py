"""What a run directory's files become in MLflow: data report, learning-rate curve, evaluation and model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, RunTag
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from rampline.config import RunConfig
from rampline.config.learning_rate import describe_schedule
from rampline.credentials import mask
from rampline.data.dataset import PreparedDataset
from rampline.explain.explanation import Explanation
from rampline.files import read_json, write_json
from rampline.jobs.system_metrics import BYTES_PER_MEBIBYTE
from rampline.parity.check import RESULT, ParityResult
from rampline.record.events import EventReader
from rampline.record.metrics import Source, to_log
from rampline.record.run_directory import RunDirectory
from rampline.study import built_in_studies
from rampline.study.execution_file import Execution, is_begun
from rampline.tracking.artifacts import draw_confusion_matrix, draw_learning_rate, write_classification_report
from rampline.tracking.lifecycle import find_run
from rampline.tracking.model import ModelMetadata, log_model
from rampline.tracking.store import STORE_ERRORS, TrackingError, first_line, log_figures, make_metrics
from rampline.tracking.study_log import NOTE_TAG

STRATEGIES = {
    "single": "one device",
    "mirrored": "{replicas} replicas in one process",
    "multi_worker": "{replicas} replicas in {workers} worker processes",
    "parameter_server": "{workers} workers, parameter servers: {servers}, asynchronous",
}


def describe_run(directory: RunDirectory, failure: str | None = None) -> str:
    """A few lines of markdown; what is not known yet is left out.

    Args:
        directory: of the run, in any state.
        failure: why it ended without being complete, one line.
    """
    paragraphs = [_purpose(directory), *_results(directory, failure), _set_up(directory), _where(directory)]
    return mask("\n\n".join(paragraph for paragraph in paragraphs if paragraph))


def _purpose(directory: RunDirectory) -> str:
    """What the study says about the run."""
    if not is_begun(directory.path.parent):
        return ""
    runs = Execution.open(directory.path.parent).study.runs
    return next((run.description for run in runs if run.name == directory.read_identity().name), "")


def _set_up(directory: RunDirectory) -> str:
    config = directory.read_config()
    devices = STRATEGIES[config.strategy].format(
        replicas=config.replicas, workers=config.cluster.workers, servers=config.cluster.parameter_servers
    )
    facts = [
        f"**{config.strategy}**, {devices}",
        f"global batch {config.global_batch_size} ({config.per_replica_batch_size} per replica)",
        _learning_rate(config),
        f"{config.epochs} epochs of {config.model.name} in {config.precision}, engine {config.engine}",
    ]
    return "; ".join(facts) + "."


def _learning_rate(config: RunConfig) -> str:
    scaling = config.learning_rate.scale_with
    scaled = "" if scaling == "none" else f" (scaled with {scaling.replace('_', ' ')})"
    return f"learning rate {describe_schedule(config)}{scaled}"


def _results(directory: RunDirectory, failure: str | None) -> Iterator[str]:
    if failure:
        yield f"**Not complete:** {failure}"
    facts = []
    if directory.evaluation_file.is_file():
        scores = read_json(directory.evaluation_file)
        facts.append(f"**{scores['split']} accuracy {scores['test_accuracy']:.4f}** on {scores['examples']:,} images")
    if directory.is_complete:
        facts.append(_times(read_json(directory.result_file)))
    if facts:
        yield ", ".join(facts) + "."
    if directory.explanation_file.is_file():
        yield f"Where the time went: {Explanation.read(directory.explanation_file).verdict.sentence}."


def _times(result: dict[str, Any]) -> str:
    times = f"trained in {result['train_seconds']:.1f} s ({result['wall_seconds']:.1f} s with start-up)"
    best = f", best epoch {result['best_epoch']}" if result.get("best_epoch") else ""
    return f"{times}{best}"


def _where(directory: RunDirectory) -> str:
    where = f"Run directory `{directory.path.absolute()}`"
    if directory.is_complete:
        return where
    study = directory.read_identity().study
    return f"{where}; `rampline run {study if study in built_in_studies() else 'FILE'} --resume` continues it."


ANSWERS_TAG = "rampline.answers"
DATA_REPORT = ("data_report.json", "data_report.csv", "undecodable.csv", "duplicates.csv")


def log_data_report(client: MlflowClient, run_id: str, dataset: PreparedDataset) -> None:
    """Log the report on the data that the run is trained with."""
    for name in DATA_REPORT:
        _log_file(client, run_id, dataset.directory / name, "data_report")


def log_learning_rate(client: MlflowClient, run_id: str, run_directory: RunDirectory) -> None:
    """Draw the learning rate into `RUN_DIR/artifacts/learning_rate.png` and log it; nothing before the first epoch."""
    events = run_directory.read_events("started", "epoch")
    curves = [event["learning_rate_curve"] for event in events if "learning_rate_curve" in event]
    rates = {event["epoch"]: event["metrics"].get("learning_rate") for event in events if event["event"] == "epoch"}
    recorded = {epoch: rate for epoch, rate in sorted(rates.items()) if rate is not None}
    if curves or recorded:
        path = run_directory.path / "artifacts" / "learning_rate.png"
        draw_learning_rate(path, curves[-1] if curves else [], recorded)
        _log_file(client, run_id, path)


def log_evaluation(client: MlflowClient, run_directory: RunDirectory, evaluation: Mapping[str, Any]) -> None:
    """Log scores, confusion matrix, classification report, summary and model on the directory's run, in any state.

    Raises:
        TrackingError: when MLflow has no run of this directory, or refuses.
    """
    try:
        run_id = find_run(client, run_directory)
        if run_id is None:
            raise TrackingError(f"{run_directory.path} has no run in MLflow")
        figures = to_log(Source.EVALUATION, evaluation)
        log_figures(client, run_id, figures, timestamp_seconds=modified_at(run_directory.evaluation_file))
        tags = {"rampline.test_split": evaluation["split"], NOTE_TAG: describe_run(run_directory)}
        predictions = run_directory.path / "predictions.csv"
        if predictions.is_file():
            # Two runs of one digest answer alike on every image, with the same probabilities.
            tags[ANSWERS_TAG] = hashlib.sha256(predictions.read_bytes()).hexdigest()[:16]
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        client.log_artifacts(run_id, str(_draw_evaluation(run_directory, evaluation)))
        for path in (run_directory.evaluation_file, predictions, run_directory.path / "model_summary.txt"):
            _log_file(client, run_id, path)
        _log_model(client, run_id, run_directory)
    except STORE_ERRORS as error:
        raise TrackingError(f"{run_directory.path} cannot be logged to MLflow: {first_line(error)}") from error


def modified_at(path: Path) -> float | None:
    """Unix seconds of a file: the fixed time of the figures in it, so that logging them again is the same point."""
    return path.stat().st_mtime if path.is_file() else None


def _draw_evaluation(run_directory: RunDirectory, evaluation: Mapping[str, Any]) -> Path:
    folder, report = run_directory.path / "artifacts", evaluation["classification_report"]
    draw_confusion_matrix(folder / "confusion_matrix.png", evaluation["confusion_matrix"], evaluation["class_names"])
    write_classification_report(folder / "classification_report.csv", report)
    write_json(folder / "classification_report.json", report)
    return folder


def _log_model(client: MlflowClient, run_id: str, run_directory: RunDirectory) -> None:
    model_file = run_directory.path / "model.keras"
    if model_file.is_file():
        dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
        log_model(client, run_id, model_file, ModelMetadata.of(dataset, run_directory.read_config().model.name))


def _log_file(client: MlflowClient, run_id: str, path: Path, folder: str | None = None) -> None:
    if path.is_file():
        client.log_artifact(run_id, str(path), folder)


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


PARITY_TAG = "rampline.parity"


def log_parity(client: MlflowClient, run_id: str, result: ParityResult) -> None:
    """Log the tag `rampline.parity` (pass, fail or not_applicable), what was measured, and `parity.json`.

    Doing it again changes nothing. A figure that was not measured, or is not finite, is left out.
    """
    client.set_tag(run_id, PARITY_TAG, result.status)
    log_figures(client, run_id, to_log(Source.PARITY, asdict(result)))
    client.log_text(run_id, json.dumps(asdict(result), indent=2) + "\n", RESULT)


CONTEXT = "training"
# Enough to tell data sets apart, and few enough for the column of a table.
FINGERPRINT_DIGITS, PREPARATION_DIGITS = 12, 8


def log_dataset(client: MlflowClient, run_id: str, dataset: PreparedDataset) -> None:
    """Log a prepared dataset as an input of a run, in any state; doing it again changes nothing.

    MLflow knows a dataset by name and digest, and keeps what it was told of it first
    (mlflow/store/tracking/sqlalchemy_store.py `_log_inputs_impl`, 3.17).
    """
    given = DatasetInput(dataset=make_dataset(dataset), tags=[InputTag(MLFLOW_DATASET_CONTEXT, CONTEXT)])
    client.log_inputs(run_id, [given])


def make_dataset(dataset: PreparedDataset) -> Dataset:
    """Name: the source. Digest: `FINGERPRINT-PREPARATION`, 21 characters; MLflow takes 36.

    The fingerprint is that of the source's content; the same content limited or resized in another way has another
    PREPARATION, from the name of the prepared folder.
    """
    preparation = dataset.directory.name.rpartition("-")[2][:PREPARATION_DIGITS]
    columns = [
        {"name": "image", "type": f"uint8 {dataset.image_shape}", "required": True},
        {"name": "label", "type": f"integer, one of {len(dataset.class_names)} classes", "required": True},
    ]
    profile = {
        **{f"{split}_images": images for split, images in dataset.splits.items()},
        "classes": len(dataset.class_names),
        "image_shape": " x ".join(map(str, dataset.image_shape)),
        "undecodable": dataset.undecodable,
        "fingerprint": dataset.fingerprint,
    }
    return Dataset(
        name=mask(dataset.source),
        digest=f"{dataset.fingerprint[:FINGERPRINT_DIGITS]}-{preparation}",
        source_type="local",
        source=json.dumps({"uri": str(dataset.directory)}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps(profile),
    )


BYTES_PER_MEGABYTE = 10**6
GPU_TAG = "rampline.gpu."
# MLflow measures no memory access, the name is ours.
GPU_NAMES = {
    "utilization_percent": "utilization_percentage",
    "memory_access_percent": "memory_access_percentage",
    "power_watts": "power_usage_watts",
}


class SystemLog:
    """Delivers what the roles of a run have sampled since the last call.

    Metrics are `system/ROLE-INDEX/NAME` with the names of MLflow's own system metrics, which shows them in its tab; the
    step is the number of the sample in the role's file, from 0. The model of a role's GPU 0 is the tag
    `rampline.gpu.ROLE-INDEX.0`.
    """

    def __init__(self, client: MlflowClient, run_id: str, directory: Path) -> None:
        self._client = client
        self._run_id = run_id
        self._directory = directory
        self._readers: dict[str, EventReader] = {}
        self._next_step: dict[str, int] = {}
        self._delivered: dict[str, int] = {}
        self._waiting: list[Metric] = []
        self._waiting_tags: list[RunTag] = []

    def deliver(self) -> None:
        """Log the new samples of all roles in one batch; what MLflow did not take waits for the next call."""
        for path in sorted(self._directory.glob("*.jsonl")):
            self._waiting.extend(self._read(path))
        if self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting, tags=self._waiting_tags)
            self._waiting, self._waiting_tags = [], []

    def _read(self, path: Path) -> Iterator[Metric]:
        node = path.stem
        if node not in self._readers:
            self._delivered[node] = self._count_delivered(node)
            self._readers[node], self._next_step[node] = EventReader(path), 0
        for sample in _whole_samples(self._readers[node]):
            step = self._next_step[node]
            self._next_step[node] += 1
            for index, gpu in enumerate(sample["gpus"]):
                if "name" in gpu:
                    self._waiting_tags.append(RunTag(f"{GPU_TAG}{node}.{index}", gpu["name"]))
            if step >= self._delivered[node]:
                figures = {f"system/{node}/{name}": value for name, value in name_metrics(sample).items()}
                yield from make_metrics(figures, step=step, timestamp_seconds=sample["time"])

    def _count_delivered(self, node: str) -> int:
        """Samples that MLflow has: another process may have delivered a part before it died.

        The last one counts as missing. A long batch goes out in several requests, which may have split it; to MLflow
        the same point again is no second one (see `RunLog`).
        """
        points = self._client.get_metric_history(self._run_id, f"system/{node}/cpu_utilization_percentage")
        return max((point.step for point in points), default=0)


def name_metrics(sample: dict[str, Any]) -> dict[str, float]:
    """A sample by MLflow's names for the machine and its GPUs, and ours for the process; memory in MB (10^6 bytes)."""
    metrics = {
        "cpu_utilization_percentage": sample["machine_cpu_percent"],
        "process_cpu_utilization_percentage": sample["cpu_percent"],
        "process_memory_usage_megabytes": _megabytes(sample["memory_mebibytes"]),
    }
    for index, gpu in enumerate(sample["gpus"]):
        metrics |= {f"gpu_{index}_{name}": value for name, value in _name_gpu_metrics(gpu).items()}
    return metrics


def _name_gpu_metrics(gpu: dict[str, Any]) -> dict[str, float]:
    metrics = {name: gpu[key] for key, name in GPU_NAMES.items() if key in gpu}
    if "memory_mebibytes" in gpu:
        metrics["memory_usage_megabytes"] = _megabytes(gpu["memory_mebibytes"])
    if "memory_total_mebibytes" in gpu:
        metrics["memory_usage_percentage"] = round(100 * gpu["memory_mebibytes"] / gpu["memory_total_mebibytes"], 1)
    return metrics


def _megabytes(mebibytes: float) -> float:
    return round(mebibytes * BYTES_PER_MEBIBYTE / BYTES_PER_MEGABYTE, 1)


def _whole_samples(reader: EventReader) -> Iterator[dict[str, Any]]:
    """Samples up to the end of the file; one that a full disk cut short is left out."""
    while True:
        try:
            yield from reader.read()
            return
        except json.JSONDecodeError:
            continue
