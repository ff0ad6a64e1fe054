"""What MLflow should hold of a run, from its run directory alone: no server, no client."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from rampline.config import RunConfig, flatten
from rampline.credentials import mask
from rampline.data.dataset import PreparedDataset
from rampline.errors import DatasetError
from rampline.explain.explanation import Explanation
from rampline.files import read_json
from rampline.forecast.forecast import Forecast
from rampline.jobs.system_metrics import BYTES_PER_MEBIBYTE
from rampline.parity.check import ParityResult, result_file
from rampline.record.attempts import read_environments, read_workers, tell_attempts
from rampline.record.delivery_state import GONE, RUNNING, DeliveryState, read_delivery
from rampline.record.events import EventReader, with_attempt
from rampline.record.metric import Source
from rampline.record.metrics import to_log
from rampline.record.provenance import commit_tags, describe_machine, source_tags
from rampline.record.run_directory import RunDirectory
from rampline.tracking.reconciliation import NOTE_TAG, PROCESS_TAG, Moment, Record, ending
from rampline.tracking.run_note import describe_run

DERIVED_PARAMS = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch", "peak_learning_rate")
# Settings that a compiled model has instead of the study, each then one param.
BROUGHT = ("optimizer", "learning_rate", "loss", "metrics")
# From which epoch on a run was trained on which machine: JSON, `[[1, "HOST (2 cores)"], [7, …]]`.
MACHINES_TAG, ENVIRONMENT_TAG = "rampline.machines", "rampline.environment."
# The first epoch of each attempt, which holds tracing, where there are several: JSON, `[1, 7]`.
FIRST_EPOCHS_TAG = "rampline.first_epochs"
ATTEMPTS_TAG, WARNING_TAG = "rampline.attempts", "rampline.warning"
# Why a run was over before its last epoch.
STOPPED_TAG = "rampline.stopped"
# Of each attempt, where an elastic run had fewer than it was to have.
WORKERS_TAG = "rampline.workers"
# The run that a run trains once more.
REPEAT_TAG = "rampline.repeat_of"
# Rows of `tell_attempts` as JSON.
ATTEMPT_TABLE_TAG = "rampline.attempt_table"
PARITY_TAG, VERDICT_TAG, BOUND_TAG = "rampline.parity", "rampline.verdict", "rampline.bound"
ANSWERS_TAG, GPU_TAG = "rampline.answers", "rampline.gpu."
# Every epoch, and every sample of a role, has these.
EPOCHS, SAMPLES = "elapsed_seconds", "system/{node}/cpu_utilization_percentage"
# Samples of a role that are read at once: all those of weeks with many GPUs would be gigabytes.
SAMPLES_AT_ONCE = 200
DATA_REPORT = ("data_report.json", "data_report.csv", "undecodable.csv", "duplicates.csv", "groups.csv")
DRAWN = ("learning_rate.png", "confusion_matrix.png", "classification_report.csv", "classification_report.json")
# MLflow measures no memory access, the name is ours.
GPU_NAMES = {
    "utilization_percent": "utilization_percentage",
    "memory_access_percent": "memory_access_percentage",
    "power_watts": "power_usage_watts",
}
# The later of two points of a step is what counts, and a clock may have been set back; less than 2 ms may be cut off.
LATER_SECONDS = 0.002
# Enough to tell data sets apart, and few enough for the column of a table.
FINGERPRINT_DIGITS, PREPARATION_DIGITS = 12, 8


class RunReader:
    """Reads a run directory for MLflow, again and again: days of events, and what never changes, are read once.

    `from_end` leaves out what its events and samples tell so far, because MLflow has it.
    """

    def __init__(self, directory: RunDirectory, *, from_end: bool = False) -> None:
        self._directory = directory
        self._events = EventReader(directory.events_file, from_end=from_end)
        self._samples: dict[Path, SampleReader] = {}
        self._is_from_end = from_end
        self._started: dict[str, Any] | None = None
        self._warning: str | None = None
        self._failed: str | None = None
        self._machines: list[list[Any]] = []
        self._first_epochs: list[int] = []
        self._times: dict[int, float] = {}

    def read(self) -> Record:
        """The record of the run but for its samples; its moments of epochs are those since the last call."""
        epochs = self._read_epochs()
        parts = [
            self._identity_part,
            _forecast_part(self._directory, self._config),
            Record(moments=epochs),
            self._events_part(),
            _parity_part(self._directory, self._config),
            _result_part(self._directory, self._config),
            _evaluation_part(self._directory),
            _explanation_part(self._directory),
            self._end_part(),
        ]
        return merge(parts)

    def began(self) -> float:
        """When the run began, however much later it is delivered: MLflow orders runs by that, and shows how long.

        A copied directory has files that are younger than the events in them.
        """
        modified = self._directory.identity_file.stat().st_mtime
        first = next(EventReader(self._directory.events_file).read(), None)
        return min(modified, first["time"]) if first else modified

    @cached_property
    def _config(self) -> RunConfig:
        return self._directory.read_config()

    @cached_property
    def _note(self) -> str:
        return describe_run(self._directory)

    @cached_property
    def _identity_part(self) -> Record:
        """What is settled before training: configuration and data."""
        identity = self._directory.read_identity()
        tags = {
            "rampline.kind": "run",
            **({} if self._is_from_end else {ATTEMPTS_TAG: "1"}),
            "rampline.run": identity.name,
            "rampline.study": identity.study,
            "rampline.execution": self._directory.path.parent.name,
            "rampline.strategy": self._config.strategy,
            "rampline.run_dir": str(self._directory.path.absolute()),
            **({REPEAT_TAG: identity.repeat_of} if identity.repeat_of else {}),
            **commit_tags(identity.git_commit),
            **source_tags(identity.study),
            **{f"rampline.published.{metric}": str(value) for metric, value in identity.published.items()},
        }
        artifacts = _existing({"config.json": self._directory.config_file})
        params = {key: value for key, value in flatten(self._config).items() if not self._is_brought(key)}
        return merge([Record(params=params, tags=tags, artifacts=artifacts), _dataset_part(Path(identity.dataset))])

    def _is_brought(self, key: str) -> bool:
        """Whether a model of the user's may bring it: its roles know, as soon as they have started."""
        return ":" in self._config.model.name and key.partition(".")[0] in BROUGHT

    def _read_epochs(self) -> list[Moment]:
        """Of an epoch that was trained again, the later one counts; one that a lost attempt alone has made is none."""
        epochs: dict[int, Moment] = {}
        for event in self._events.read("started", "epoch", "warning", "failed"):
            match event["event"]:
                case "started":
                    self._started, self._failed = event, None
                    self._note_start(event)
                    first = event.get("first_epoch", math.inf)
                    epochs = {step: moment for step, moment in epochs.items() if step < first}
                case "epoch":
                    figures, step = to_log(Source.EPOCH, event["metrics"]), event["epoch"]
                    before = self._times.get(step, -math.inf)
                    self._times[step] = time = max(event["time"], before + LATER_SECONDS)
                    epochs[step] = Moment(series=EPOCHS, step=step, time=time, figures=figures)
                case "warning":
                    self._warning = event["message"]
                case "failed":
                    self._failed = event["message"]
        return [epochs[step] for step in sorted(epochs)]

    def _note_start(self, started: dict[str, Any]) -> None:
        """Which machine trains from which epoch on, for figures are compared per machine, and that it traces there."""
        first, machine = started.get("first_epoch", 1), describe_machine(self._environment(started))
        # Epochs from there on are trained anew.
        self._machines = [known for known in self._machines if known[0] < first]
        self._first_epochs = with_attempt(self._first_epochs, first)
        if not self._machines or self._machines[-1][1] != machine:
            self._machines.append([first, machine])

    def _environment(self, started: dict[str, Any]) -> dict[str, str]:
        return read_environments(self._directory.attempts_file).get(started.get("attempt", 1), {})

    def _events_part(self) -> Record:
        tags: dict[str, str | None] = {WARNING_TAG: self._warning} if self._warning else {}
        if self._started is None:
            return Record(tags=tags)
        tags |= {f"{ENVIRONMENT_TAG}{name}": text for name, text in self._environment(self._started).items()}
        attempts = self._directory.attempts_until(self._started.get("attempt", 1))
        tags |= {MACHINES_TAG: json.dumps(self._machines), ATTEMPTS_TAG: str(attempts)}
        tags[FIRST_EPOCHS_TAG] = json.dumps(self._first_epochs) if len(self._first_epochs) > 1 else None
        params = {name: self._started[name] for name in DERIVED_PARAMS if name in self._started}
        brought = self._started.get("compiled_with", {})
        settings = {key: value for key, value in flatten(self._config).items() if self._is_brought(key)}
        params |= {key: value for key, value in settings.items() if key.partition(".")[0] not in brought} | brought
        return Record(params=params, tags=tags)

    def read_samples(self) -> Iterator[Record]:
        """What its roles' samplers have measured since the last call, `SAMPLES_AT_ONCE` of each role in a record."""
        files = sorted(self._directory.path.glob("system/*.jsonl")) if not self._is_from_end else []
        self._samples |= {file: SampleReader(file) for file in files if file not in self._samples}
        while (record := merge([self._samples[file].read() for file in files])).moments:
            yield record

    def _end_part(self) -> Record:
        directory, state = self._directory, read_delivery(self._directory.path)
        status, failure = RUNNING, self._failed
        if state is None or not state.is_running:
            status, failure = self._how_it_ended(state)
        note = self._note if status == RUNNING else describe_run(directory, failure)
        tags = ending(status, failure) | {NOTE_TAG: note}
        if state is not None:
            tags[PROCESS_TAG] = state.process
        if status != RUNNING and (rows := tell_attempts(directory)):
            tags[ATTEMPT_TABLE_TAG] = json.dumps(rows, ensure_ascii=False)
        drawn = {name: directory.artifacts / name for name in DRAWN}
        return Record(status=status, ended=_worked_until(directory), tags=tags, artifacts=_existing(drawn))

    def _how_it_ended(self, state: DeliveryState | None) -> tuple[str, str | None]:
        if self._directory.is_complete:
            return "COMPLETE", None
        if state is not None and state.status != RUNNING:
            return state.status, state.failure
        return ("FAILED", self._failed) if self._failed else ("KILLED", GONE)


class SampleReader:
    """Reads what the sampler of a role has measured, `system/ROLE-INDEX.jsonl`.

    Metrics are `system/ROLE-INDEX/NAME` with the names of MLflow's own system metrics, which shows them in its tab; the
    step is the number of the sample in the role's file, from 0. The model of a role's GPU 0 is the tag
    `rampline.gpu.ROLE-INDEX.0`.
    """

    def __init__(self, file: Path) -> None:
        self._node, self._reader, self._steps = file.stem, EventReader(file), itertools.count()

    def read(self) -> Record:
        """The samples since the last call, `SAMPLES_AT_ONCE` at most."""
        moments, tags = [], {}
        for sample in itertools.islice(_whole_samples(self._reader), SAMPLES_AT_ONCE):
            figures = {f"system/{self._node}/{name}": value for name, value in name_metrics(sample).items()}
            series, step = SAMPLES.format(node=self._node), next(self._steps)
            moments.append(Moment(series=series, step=step, time=sample["time"], figures=figures))
            named = {index: gpu["name"] for index, gpu in enumerate(sample["gpus"]) if "name" in gpu}
            tags |= {f"{GPU_TAG}{self._node}.{index}": name for index, name in named.items()}
        return Record(moments=moments, tags=tags)


def _dataset_part(folder: Path) -> Record:
    """Nothing where it was deleted since."""
    try:
        dataset = PreparedDataset.open(folder)
    except DatasetError:
        return Record()
    given = DatasetInput(dataset=make_dataset(dataset), tags=[InputTag(MLFLOW_DATASET_CONTEXT, "training")])
    reports = _existing({f"data_report/{name}": dataset.directory / name for name in DATA_REPORT})
    return Record(tags={"rampline.data_fingerprint": dataset.fingerprint}, artifacts=reports, dataset=given)


def _forecast_part(directory: RunDirectory, config: RunConfig) -> Record:
    file = directory.forecast_file
    if not file.is_file():
        return Record()
    figures = Forecast.read(file).figures(config.cluster.price_per_hour)
    return Record(moments=[Moment(figures=figures, time=_modified(file))], artifacts={file.name: file})


def _parity_part(directory: RunDirectory, config: RunConfig) -> Record:
    """The check was made before training, or does not apply; it may also have been left out."""
    file = result_file(directory)
    if not file.is_file():
        return Record(tags={PARITY_TAG: "not_applicable"} if config.strategy == "single" else {})
    result = ParityResult.read(file)
    figures = Moment(figures=to_log(Source.PARITY, asdict(result)), time=_modified(file))
    return Record(tags={PARITY_TAG: result.status}, moments=[figures], artifacts={file.name: file})


def _result_part(directory: RunDirectory, config: RunConfig) -> Record:
    """Times, best epoch, and the cost where `cluster.price_per_hour` is given.

    `cost_usd` is that price times `wall_seconds` / 3600: the roles from their start to the end of training, without the
    preparation of the data and the evaluation.
    """
    if not directory.is_complete:
        return Record()
    result = read_json(directory.result_file)
    figures = to_log(Source.RESULT, result)
    price, seconds = config.cluster.price_per_hour, result.get("wall_seconds")
    if price is not None and seconds is not None:
        figures["cost_usd"] = price * seconds / 3600
    profile = directory.tensorboard.rglob("*") if config.profile else ()
    tags, workers = {ATTEMPTS_TAG: str(result.get("attempts", 1))}, read_workers(directory.attempts_file)
    if stopped := result.get("stopped"):
        tags[STOPPED_TAG] = stopped
    if any(count != config.cluster.workers for count in workers):
        tags[WORKERS_TAG] = ", ".join(map(str, workers))
    return Record(
        tags=tags,
        moments=[Moment(figures=figures, time=_modified(directory.result_file))],
        artifacts=_existing({str(file.relative_to(directory.path)): file for file in profile}),
    )


def _evaluation_part(directory: RunDirectory) -> Record:
    file = directory.evaluation_file
    if not file.is_file():
        return Record()
    evaluation, predictions = read_json(file), directory.predictions_file
    tags = {"rampline.test_split": evaluation["split"]}
    if predictions.is_file():
        # Two runs of one digest answer alike on every image, with the same probabilities.
        tags[ANSWERS_TAG] = hashlib.sha256(predictions.read_bytes()).hexdigest()[:16]
    others = (predictions, directory.worst_errors_file, directory.path / "model_summary.txt")
    files = {path.name: path for path in (file, *others)}
    return Record(
        tags=tags,
        moments=[Moment(figures=to_log(Source.EVALUATION, evaluation), time=_modified(file))],
        artifacts=_existing(files),
        model=directory.model if directory.model.is_dir() else None,
    )


def _explanation_part(directory: RunDirectory) -> Record:
    file = directory.explanation_file
    if not file.is_file():
        return Record()
    explanation = Explanation.read(file)
    files = {f"explanation/{path.name}": path for path in (file, directory.probes_file, directory.replica_file)}
    return Record(
        tags={VERDICT_TAG: explanation.verdict.sentence, BOUND_TAG: explanation.verdict.bound},
        moments=[Moment(figures=explanation.figures(), time=_modified(file))],
        artifacts=_existing(files),
    )


def merge(records: Sequence[Record]) -> Record:
    """One record of several; of what two of them say, the later one counts."""
    return Record(
        status=next((record.status for record in reversed(records) if record.status), ""),
        ended=next((record.ended for record in reversed(records) if record.ended is not None), None),
        params={name: value for record in records for name, value in record.params.items()},
        tags={name: text for record in records for name, text in record.tags.items()},
        moments=[moment for record in records for moment in record.moments],
        artifacts={name: file for record in records for name, file in record.artifacts.items()},
        dataset=next((record.dataset for record in reversed(records) if record.dataset), None),
        model=next((record.model for record in reversed(records) if record.model), None),
    )


def _existing(files: dict[str, Path]) -> dict[str, Path]:
    return {name: file for name, file in files.items() if file.is_file()}


def _modified(file: Path) -> float:
    """The fixed time of the figures in a file: to log them again gives the same points."""
    return file.stat().st_mtime


def _worked_until(directory: RunDirectory) -> float | None:
    """When a run was last at work: it may be delivered much later."""
    files = (directory.result_file, directory.attempts_file, directory.events_file)
    return max((_modified(file) for file in files if file.is_file()), default=None)


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
    return round(mebibytes * BYTES_PER_MEBIBYTE / 1e6, 1)


def _whole_samples(reader: EventReader) -> Iterator[dict[str, Any]]:
    """Samples up to the end of the file; one that a full disk cut short is left out."""
    while True:
        try:
            yield from reader.read()
            return
        except json.JSONDecodeError:
            continue
