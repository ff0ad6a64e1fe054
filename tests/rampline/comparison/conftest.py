"""Studies in a real MLflow store on sqlite, logged as the tracking contract says."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from logged_runs import LoggedRun
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from rampline.comparison.runs import Comparison, read_comparison

PER_EPOCH = ("val_accuracy", "images_per_second", "learning_rate", "elapsed_seconds")


LogStudy = Callable[..., str]


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory, initialised: Path) -> MlflowClient:
    """A client of one fresh sqlite store, which all tests share under different studies."""
    database = shutil.copy(initialised, tmp_path_factory.mktemp("mlflow") / "mlflow.db")
    return MlflowClient(tracking_uri=f"sqlite:///{database}")


@pytest.fixture(scope="session")
def log_study(client: MlflowClient, tmp_path_factory: pytest.TempPathFactory) -> LogStudy:
    """Logs one execution of a study, `log_study(study, runs, **parent_tags)`, and returns its parent run's id."""

    def log(study: str, runs: Sequence[LoggedRun], execution: str = "first", **tags: str) -> str:
        experiment, artifacts = client.get_experiment_by_name(study), tmp_path_factory.mktemp("artifacts")
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(study, str(artifacts))
        parent_tags = {"rampline.kind": "study", "rampline.study": study, "rampline.execution": execution}
        parent_tags |= {"rampline.accuracy_tolerance": "0.01"}
        parent_tags |= {f"rampline.{name}": value for name, value in tags.items()}
        parent = client.create_run(experiment_id, tags=parent_tags).info.run_id
        for number, run in enumerate(runs):
            _log_run(client, experiment_id, parent, run, start_time=int(time.time() * 1000) + number)
        client.set_terminated(parent)
        return parent

    return log


@pytest.fixture(scope="session")
def compare(client: MlflowClient, log_study: LogStudy) -> Callable[..., Comparison]:
    """`compare(study, runs, **parent_tags)` logs an execution and reads it."""
    return lambda study, runs, **tags: read_comparison(client, study, log_study(study, runs, **tags))


def _log_run(client: MlflowClient, experiment_id: str, parent: str, run: LoggedRun, start_time: int) -> None:
    tags = {
        "mlflow.parentRunId": parent,
        "rampline.kind": "run",
        "rampline.run": run.name,
        "rampline.strategy": run.strategy,
        "rampline.git_commit": "0123abc",
        "rampline.data_fingerprint": "f" * 64,
        **run.tags,
    }
    run_id = client.create_run(experiment_id, start_time=start_time, tags=tags, run_name=run.name).info.run_id
    params = {
        "strategy": run.strategy,
        "engine": run.engine,
        "seed": "7",
        "precision": "float32",
        "cluster.virtual_devices": "0",
        "replicas": str(run.replicas),
        "global_batch_size": "64",
        "per_replica_batch_size": str(64 // run.replicas),
        **run.params,
    }
    metrics = [Metric(key, value, start_time, 0) for key, value in run.metrics.items()]
    for epoch, values in enumerate(run.epochs, start=1):
        metrics += [Metric(k, v, start_time + epoch, epoch) for k, v in zip(PER_EPOCH, values, strict=True)]
    for key, values in run.curves.items():
        metrics += [Metric(key, value, start_time + epoch, epoch) for epoch, value in enumerate(values, start=1)]
    client.log_batch(
        run_id,
        metrics=metrics,
        params=[Param(key, value) for key, value in params.items()],
        tags=[RunTag("rampline.test_split", "test")] if "test_accuracy" in run.metrics else [],
    )
    if run.status != "RUNNING":
        client.set_terminated(run_id, run.status)


@pytest.fixture(scope="session")
def four_runs() -> list[LoggedRun]:
    """Four runs: reference, same speed in other epochs, faster on two replicas, failed."""
    baseline = LoggedRun(
        name="baseline",
        epochs=[(0.80, 100, 1e-3, 2), (0.95, 1000, 1e-3, 3), (0.93, 1100, 1e-3, 4), (0.94, 900, 1e-3, 5)],
        metrics={"test_accuracy": 0.94, "test_loss": 0.2, "train_seconds": 5.0, "wall_seconds": 9.0},
        tags={"rampline.published.train_seconds": "2090", "rampline.published.test_accuracy": "0.98"},
    )
    short = LoggedRun(
        name="short",
        engine="fit",
        epochs=[(0.90, 200, 1e-3, 2), (0.92, 1000, 1e-3, 3)],
        metrics={"test_accuracy": 0.93, "train_seconds": 3.0, "wall_seconds": 6.0},
    )
    mirrored = LoggedRun(
        name="mirrored",
        strategy="mirrored",
        replicas=2,
        epochs=[(0.70, 50, 1e-5, 3), (0.90, 1500, 1e-3, 4), (0.95, 1400, 1e-3, 5), (0.96, 1700, 5e-4, 6)],
        metrics={"test_accuracy": 0.952, "train_seconds": 4.0, "wall_seconds": 10.0, "cost_usd": 0.02},
        params={"cluster.virtual_devices": "2"},
    )
    failed = LoggedRun(
        name="multi-worker",
        strategy="multi_worker",
        replicas=2,
        status="FAILED",
        epochs=[(0.60, 400, 1e-3, 2)],
        tags={"rampline.failure": "worker 1 ended with exit status -9"},
    )
    return [baseline, short, mirrored, failed]
