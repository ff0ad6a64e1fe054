"""The child run: one run directory in MLflow while it trains."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import RunTag
from mlflow.tracking import MlflowClient

from rampline.config import flatten
from rampline.credentials import mask
from rampline.data.dataset import PreparedDataset
from rampline.parity.check import ParityResult, result_file
from rampline.record.attempts import read_environments
from rampline.record.metrics import Source, logged, to_log
from rampline.record.provenance import describe_machine
from rampline.record.run_directory import RunDirectory
from rampline.tracking.lifecycle import FAILURE_TAG, end, find_or_create_run, take_over
from rampline.tracking.run_artifacts import (
    PARITY_TAG,
    SystemLog,
    describe_run,
    log_data_report,
    log_dataset,
    log_learning_rate,
    log_parity,
    modified_at,
)
from rampline.tracking.store import STORE_ERRORS, TrackingError, first_line, log_figures, log_params, make_metrics
from rampline.tracking.study_log import NOTE_TAG

DERIVED_PARAMS = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch", "peak_learning_rate")
# From which epoch on a run was trained on which machine: JSON, `[[1, "HOST (2 cores)"], [7, …]]`.
MACHINES_TAG, ENVIRONMENT_TAG = "rampline.machines", "rampline.environment."
ATTEMPTS_TAG, WARNING_TAG = "rampline.attempts", "rampline.warning"
EVENTS = ("started", "epoch", "warning", "failed")
SYSTEM_INTERVAL_SECONDS = 10.0


class RunLog:
    """Writes one run to MLflow: what is there already is never written twice, so every call may be repeated.

    A request that failed may have been carried out. So after an error the run is opened again, which asks MLflow for
    the epochs it has. Should it commit an epoch after that, it still holds every point once: points carry the time of
    their event, a repeated one is identical, and all of (key, timestamp, step, run, value, is_nan) is the primary key
    of MLflow's table `metrics`; its store leaves out what it has (mlflow/store/tracking/dbmodels/models.py `SqlMetric`,
    sqlalchemy_store.py `_log_metrics_once`, 3.17).
    """

    def __init__(self, client: MlflowClient, run_directory: RunDirectory, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self._directory = run_directory
        self._config = run_directory.read_config()
        self._system = SystemLog(client, run_id, run_directory.path / "system")
        self._epochs = self._logged_epochs()
        self._system_due = 0.0
        self._machines: list[list[Any]] = []
        self.new_epochs = 0

    @classmethod
    def open(cls, client: MlflowClient, run_directory: RunDirectory, *, parent_run_id: str) -> RunLog:
        """Begin the MLflow run of a run directory, or take over the one it has; what its events tell is delivered.

        Raises:
            TrackingError: when MLflow refuses.
        """
        try:
            run_id = find_or_create_run(client, run_directory, parent_run_id)
            take_over(client, run_id, tags={NOTE_TAG: describe_run(run_directory)})
            log = cls(client, run_directory, run_id)
            dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
            for of in (run_id, parent_run_id):
                log_dataset(client, of, dataset)
            log_params(client, run_id, flatten(log._config))
            client.log_artifact(run_id, str(run_directory.config_file))
            log_data_report(client, run_id, dataset)
            log._replay()
        except STORE_ERRORS as error:
            raise TrackingError(f"MLflow run of {run_directory.path} cannot be begun: {first_line(error)}") from error
        return log

    def handle(self, event: Mapping[str, Any]) -> None:
        """Log one event of `events.jsonl`; those of no interest to MLflow are passed over."""
        match event["event"]:
            case "started":
                log_params(self.client, self.run_id, {name: event[name] for name in DERIVED_PARAMS if name in event})
                self.client.set_tag(self.run_id, ATTEMPTS_TAG, str(event.get("attempt", 1)))
                self._log_machine(event)
            case "failed":
                self.client.set_tag(self.run_id, FAILURE_TAG, mask(event["message"]))
            case "warning":
                self.client.set_tag(self.run_id, WARNING_TAG, mask(event["message"]))
            case "epoch" if event["epoch"] not in self._epochs:
                figures = to_log(Source.EPOCH, event["metrics"])
                metrics = make_metrics(figures, step=event["epoch"], timestamp_seconds=event["time"])
                self.client.log_batch(self.run_id, metrics=metrics)
                self._epochs.add(event["epoch"])
                self.new_epochs += 1

    def deliver_system_metrics(self) -> None:
        """Every few seconds, log what the roles' samplers have measured."""
        if time.monotonic() >= self._system_due:
            self._system.deliver()
            self._system_due = time.monotonic() + SYSTEM_INTERVAL_SECONDS

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Log what `result.json` tells: times, best epoch, and the cost where `cluster.price_per_hour` is given.

        `cost_usd` is that price times `wall_seconds` / 3600: the roles from their start to the end of training, without
        the preparation of the data and the evaluation.

        Raises:
            TrackingError: when MLflow refuses.
        """
        figures = to_log(Source.RESULT, result)
        price, seconds = self._config.cluster.price_per_hour, result.get("wall_seconds")
        if price is not None and seconds is not None:
            figures["cost_usd"] = price * seconds / 3600
        written = modified_at(self._directory.result_file)
        attempts = RunTag(ATTEMPTS_TAG, str(result.get("attempts", 1)))
        try:
            log_figures(self.client, self.run_id, figures, timestamp_seconds=written)
            self.client.log_batch(self.run_id, tags=[attempts])
        except STORE_ERRORS as error:
            raise TrackingError(f"MLflow run {self.run_id} cannot be written: {first_line(error)}") from error

    def close(self, status: str, failure: str | None = None, result: Mapping[str, Any] | None = None) -> None:
        """Deliver the rest, with the content of `result.json` of a complete run, and end the run.

        Args:
            status: `COMPLETE`, `FAILED`, `KILLED` or `PREEMPTED`.
            failure: why it is not complete, one line for the user.
            result: content of `result.json`.

        Raises:
            TrackingError: when MLflow refuses.
        """
        try:
            self._log_parity()
            self._system.deliver()
            if result is not None:
                self.log_result(result)
                self._log_profile()
            log_learning_rate(self.client, self.run_id, self._directory)
            note = {NOTE_TAG: describe_run(self._directory, failure)}
            end(self.client, self.run_id, status, failure, tags=note, ended_seconds=self._ended_seconds())
        except STORE_ERRORS as error:
            raise TrackingError(f"MLflow run {self.run_id} cannot be closed: {first_line(error)}") from error

    def _ended_seconds(self) -> float | None:
        """When the run was last at work: it may be delivered much later."""
        files = (self._directory.result_file, self._directory.attempts_file, self._directory.events_file)
        return max((at for file in files if (at := modified_at(file)) is not None), default=None)

    def _log_parity(self) -> None:
        """The check was made before training, or does not apply; it may also have been left out."""
        file = result_file(self._directory)
        if file.is_file():
            log_parity(self.client, self.run_id, ParityResult.read(file))
        elif self._config.strategy == "single":
            self.client.set_tag(self.run_id, PARITY_TAG, "not_applicable")

    def _log_profile(self) -> None:
        if self._config.profile and self._directory.tensorboard.is_dir():
            self.client.log_artifacts(self.run_id, str(self._directory.tensorboard), "tensorboard")

    def _log_machine(self, started: Mapping[str, Any]) -> None:
        """Which machine trains from which epoch on, and all that is known of it: figures are compared per machine."""
        environment = read_environments(self._directory.attempts_file).get(started.get("attempt", 1), {})
        first, machine = started.get("first_epoch", 1), describe_machine(environment)
        # Epochs from there on are trained anew.
        self._machines = [known for known in self._machines if known[0] < first]
        if not self._machines or self._machines[-1][1] != machine:
            self._machines.append([first, machine])
        tags = {f"{ENVIRONMENT_TAG}{name}": value for name, value in environment.items()}
        tags[MACHINES_TAG] = json.dumps(self._machines)
        self.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def _replay(self) -> None:
        """Deliver what an earlier process may not have: of an epoch that was trained again, the later one counts."""
        events = self._directory.read_events("started", "warning", "epoch")
        epochs = {event["epoch"]: event for event in events if event["event"] == "epoch"}
        starts = [event for event in events if event["event"] == "started"]
        for event in starts[:-1]:
            self._log_machine(event)
        for event in starts[-1:] + [event for event in events if event["event"] == "warning"][-1:]:
            self.handle(event)
        for number in sorted(epochs):
            self.handle(epochs[number])

    def _logged_epochs(self) -> set[int]:
        """MLflow itself is asked: a marker of ours could be older or newer than what it has taken."""
        known = self.client.get_run(self.run_id).data.metrics
        names = [name for name in logged(Source.EPOCH) if name in known]
        return {point.step for name in names for point in self.client.get_metric_history(self.run_id, name)}
