"""The child run: one run directory in MLflow while it trains."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.config import flatten
from rampline.data.dataset import PreparedDataset
from rampline.run_directory import RunDirectory
from rampline.tracking.figures import log_figures, log_params, make_metrics
from rampline.tracking.lifecycle import FAILURE_TAG, end, take_over
from rampline.tracking.mlflow_run import create_run, find_run
from rampline.tracking.run_artifacts import log_data_report, log_learning_rate
from rampline.tracking.store import TrackingError, first_line
from rampline.tracking.system_log import SystemLog

EPOCH_METRICS = (
    *("train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate"),
    *("epoch_seconds", "images_per_second", "input_wait_fraction", "elapsed_seconds"),
)
RESULT_METRICS = ("train_seconds", "wall_seconds", "best_epoch", "best_val_accuracy")
DERIVED_PARAMS = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch", "peak_learning_rate")
SYSTEM_INTERVAL_SECONDS = 10.0
RETRY_SECONDS = 30.0

logger = logging.getLogger(__name__)


class RunLog:
    """Writes one run to MLflow: what is there already is never written twice, so every call may be repeated.

    While a run trains, an MLflow that cannot be reached is warned about once and never stops it: what it has not taken
    is delivered with a later event, or by whoever opens the run directory next.
    """

    def __init__(self, client: MlflowClient, run_directory: RunDirectory, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self._directory = run_directory
        self._config = run_directory.read_config()
        self._system = SystemLog(client, run_id, run_directory.path / "system")
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._epochs = self._logged_epochs()
        self._system_due = 0.0
        self._retry_at = 0.0

    @classmethod
    def open(cls, client: MlflowClient, run_directory: RunDirectory, *, parent_run_id: str) -> RunLog:
        """Begin the MLflow run of a run directory, or take over the one it has; what its events tell is delivered.

        Raises:
            TrackingError: when MLflow refuses.
        """
        try:
            run_id = find_run(client, run_directory) or create_run(client, run_directory, parent_run_id)
            take_over(client, run_id)
            log = cls(client, run_directory, run_id)
            log_params(client, run_id, flatten(log._config))
            client.log_artifact(run_id, str(run_directory.config_file))
            log_data_report(client, run_id, PreparedDataset.open(Path(run_directory.read_identity().dataset)))
            log._replay()
        except MlflowException as error:
            raise TrackingError(f"MLflow run of {run_directory.path} cannot be begun: {first_line(error)}") from error
        return log

    def handle(self, event: Mapping[str, Any]) -> None:
        """Deliver one event of `events.jsonl`, and every few seconds what the roles' samplers have measured."""
        if event["event"] in ("started", "epoch", "failed"):
            self._waiting.append(event)
        now = time.monotonic()
        if now < self._retry_at or not (self._waiting or now >= self._system_due):
            return
        try:
            self._deliver()
        except MlflowException as error:
            if not self._retry_at:
                logger.warning("MLflow does not answer, training goes on: %s", first_line(error))
            self._retry_at = time.monotonic() + RETRY_SECONDS

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Log what `result.json` tells: times, best epoch, and the cost where `cluster.price_per_hour` is given.

        `cost_usd` is that price times `wall_seconds` / 3600: the roles from their start to the end of training, without
        the preparation of the data and the evaluation.

        Raises:
            TrackingError: when MLflow refuses.
        """
        figures = {name: result.get(name) for name in RESULT_METRICS}
        price, seconds = self._config.cluster.price_per_hour, result.get("wall_seconds")
        if price is not None and seconds is not None:
            figures["cost_usd"] = price * seconds / 3600
        try:
            log_figures(self.client, self.run_id, figures)
            self.client.set_tag(self.run_id, "rampline.attempts", str(result.get("attempts", 1)))
        except MlflowException as error:
            raise TrackingError(f"MLflow run {self.run_id} cannot be written: {first_line(error)}") from error

    def close(self, status: str, failure: str | None = None) -> None:
        """Deliver the rest and end the run as `FINISHED`, `FAILED` or `KILLED`; `failure` is one line for the user.

        Raises:
            TrackingError: when MLflow refuses; the next execution on this machine then ends the run.
        """
        try:
            self._deliver()
            log_learning_rate(self.client, self.run_id, self._directory)
            end(self.client, self.run_id, status, failure)
        except MlflowException as error:
            raise TrackingError(f"MLflow run {self.run_id} cannot be closed: {first_line(error)}") from error

    def _deliver(self) -> None:
        while self._waiting:
            self._log_event(self._waiting[0])
            self._waiting.popleft()
        self._system.deliver()
        self._system_due = time.monotonic() + SYSTEM_INTERVAL_SECONDS
        self._retry_at = 0.0

    def _log_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "started":
            log_params(self.client, self.run_id, {name: event[name] for name in DERIVED_PARAMS if name in event})
            self.client.set_tag(self.run_id, "rampline.attempts", str(event.get("attempt", 1)))
        elif event["event"] == "failed":
            self.client.set_tag(self.run_id, FAILURE_TAG, event["message"])
        elif event["epoch"] not in self._epochs:
            figures = {name: event["metrics"].get(name) for name in EPOCH_METRICS}
            metrics = make_metrics(figures, step=event["epoch"], timestamp_seconds=event["time"])
            self.client.log_batch(self.run_id, metrics=metrics)
            self._epochs.add(event["epoch"])

    def _replay(self) -> None:
        """Deliver what an earlier process may not have: of an epoch that was trained again, the later one counts."""
        events = self._directory.read_events()
        latest = {event["epoch"]: event for event in events if event["event"] == "epoch"}
        self._waiting.extend([event for event in events if event["event"] == "started"][-1:])
        self._waiting.extend(latest[epoch] for epoch in sorted(latest))
        self._deliver()

    def _logged_epochs(self) -> set[int]:
        """MLflow itself is asked: a marker of ours could be older or newer than what it has taken."""
        names = [name for name in EPOCH_METRICS if name in self.client.get_run(self.run_id).data.metrics]
        return {point.step for name in names for point in self.client.get_metric_history(self.run_id, name)}
