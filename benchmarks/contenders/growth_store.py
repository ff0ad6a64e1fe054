"""An MLflow store with many runs of the study `digits`.

One execution is logged through MLflow's client as `rampline.tracking` does it: every param of the run's configuration,
its tags, nine metrics per epoch, and three system metrics per role every five seconds. The others are copies of it with
ids and times of their own, made in SQL, because logging 5,000 runs one by one takes half an hour.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

COPIED = ("params", "tags", "metrics", "latest_metrics")
HOUR_MILLISECONDS = 3_600_000
EPOCHS, SAMPLES, SAMPLE_SECONDS = 12, 12, 5.0


def fill_store(home_folder: Path, runs: int, *, per_execution: int = 5) -> str:
    """Fill the MLflow store of an empty home with executions of one study, parents counted among the runs.

    Args:
        home_folder: what `RAMPLINE_HOME` will be.
        runs: runs in the store: an execution is a parent and `per_execution` children.
        per_execution: children of each execution.

    Returns:
        name of the study.
    """
    from rampline.record.home import Home
    from rampline.tracking.store import open_tracking

    home = Home(root=home_folder)
    client = open_tracking(home)
    study, ids = _log_execution(client, home, per_execution)
    copies = max(runs // (per_execution + 1), 1) - 1
    with sqlite3.connect(home.tracking_database) as database:
        for number in range(1, copies + 1):
            _copy(database, ids, f"past-{number:05d}", number * HOUR_MILLISECONDS)
        database.execute("ANALYZE")
    return study


def _log_execution(client, home, children: int) -> tuple[str, list[str]]:
    from rampline.study import load_study
    from rampline.tracking.study_log import StudyLog, open_experiment, study_tags

    study = load_study("digits")
    experiment = open_experiment(client, study, home, execution="latest")
    opened = StudyLog.open(client, experiment, study=study.name, execution="latest", tags=study_tags(study))
    ids = [opened.run_id]
    for number in range(children):
        ids.append(_log_run(client, experiment, opened.run_id, study.runs[number % len(study.runs)], number))
    opened.close("COMPLETE")
    return study.name, ids


def _log_run(client, experiment: str, parent: str, run, number: int) -> str:
    from rampline.config import flatten
    from rampline.record.provenance import commit_tags, source_tags
    from rampline.tracking.lifecycle import end, take_over
    from rampline.tracking.store import log_figures, log_params

    name = run.name if number < 5 else f"{run.name}-{number}"
    tags = {
        "mlflow.parentRunId": parent,
        "rampline.kind": "run",
        "rampline.run": name,
        "rampline.study": "digits",
        "rampline.execution": "latest",
        "rampline.strategy": run.config.strategy,
        "rampline.data_fingerprint": "f" * 64,
        "rampline.test_split": "test",
        **commit_tags("0" * 40),
        **source_tags("digits"),
    }
    run_id = client.create_run(experiment, tags=tags, run_name=name).info.run_id
    take_over(client, run_id)
    config = run.config
    derived = {
        "replicas": config.cluster.replicas * config.cluster.workers,
        "per_replica_batch_size": config.per_replica_batch_size,
        "global_batch_size": config.global_batch_size,
        "steps_per_epoch": 40,
        "peak_learning_rate": config.peak_learning_rate,
    }
    log_params(client, run_id, {**flatten(config), **derived})
    client.log_batch(run_id, metrics=_history(time.time(), number, roles=sum(_roles(config).values())))
    figures = {"test_accuracy": 0.97 + number / 10_000, "test_loss": 0.1, "train_seconds": 20.0, "wall_seconds": 30.0}
    log_figures(client, run_id, figures)
    end(client, run_id, "COMPLETE")
    return run_id


def _roles(config) -> dict[str, int]:
    from rampline.jobs.roles import role_counts

    return role_counts(config)


def _history(now: float, number: int, *, roles: int) -> list:
    """Metrics of every epoch, then those of the machine for every role."""
    from rampline.record.metrics import Source, logged
    from rampline.tracking.run_artifacts import name_metrics
    from rampline.tracking.store import make_metrics

    names, metrics = logged(Source.EPOCH), []
    for epoch in range(1, EPOCHS + 1):
        figures = dict.fromkeys(names, 0.9 + (epoch + number) / 1000)
        figures |= {"images_per_second": 1000.0 + epoch + number, "epoch_seconds": 1.5, "elapsed_seconds": 1.5 * epoch}
        metrics += make_metrics(figures, step=epoch, timestamp_seconds=now + 1.5 * epoch)
    for role in range(roles):
        for sample in range(SAMPLES):
            measured = {
                "machine_cpu_percent": 80.0 + sample,
                "cpu_percent": 95.0,
                "memory_mebibytes": 600.0,
                "gpus": [],
            }
            figures = {f"system/worker-{role}/{key}": value for key, value in name_metrics(measured).items()}
            metrics += make_metrics(figures, step=sample, timestamp_seconds=now + SAMPLE_SECONDS * sample)
    return metrics


def _copy(database: sqlite3.Connection, ids: Sequence[str], execution: str, earlier_milliseconds: int) -> None:
    """One execution more: rows of the first one with new ids, another name, and times that are earlier."""
    new = {run_id: uuid.uuid4().hex for run_id in ids}
    _copy_rows(database, "runs", "run_uuid", new, {"start_time": f"start_time - {earlier_milliseconds}"})
    for table in COPIED:
        _copy_rows(database, table, "run_uuid", new, {})
    values = ",".join(f"'{run_id}'" for run_id in new.values())
    database.execute(
        f"UPDATE tags SET value = ? WHERE key = 'rampline.execution' AND run_uuid IN ({values})", (execution,)
    )
    parent = new[ids[0]]
    database.execute(
        f"UPDATE tags SET value = ? WHERE key = 'mlflow.parentRunId' AND run_uuid IN ({values})", (parent,)
    )
    database.execute("UPDATE runs SET name = ? WHERE run_uuid = ?", (execution, parent))


def _copy_rows(
    database: sqlite3.Connection, table: str, key: str, new: dict[str, str], changed: dict[str, str]
) -> None:
    names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    values = ["?" if name == key else changed.get(name, name) for name in names]
    statement = f"INSERT INTO {table} ({','.join(names)}) SELECT {','.join(values)} FROM {table} WHERE {key} = ?"
    database.executemany(statement, [(made, old) for old, made in new.items()])
