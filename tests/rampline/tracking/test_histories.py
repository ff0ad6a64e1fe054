from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from sqlalchemy import event

from rampline.tracking import histories
from rampline.tracking.histories import read_histories


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    folder: Path = tmp_path_factory.mktemp("histories")
    return MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")


def log_runs(client: MlflowClient, study: str, number: int, points: int) -> list:
    experiment = client.create_experiment(study)
    ids = [client.create_run(experiment).info.run_id for _ in range(number)]
    for offset, run_id in enumerate(ids):
        metrics = [Metric(key, offset + step / 10, step, step) for key in ("loss", "rate") for step in range(points)]
        client.log_batch(run_id, metrics=metrics)
    return [client.get_run(run_id) for run_id in ids]


def count_queries(client: MlflowClient, runs: list) -> int:
    counted: list[str] = []

    def count(connection, cursor, statement: str, *_) -> None:
        if "FROM metrics" in statement:
            counted.append(statement)

    engine = client._tracking_client.store.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", count)
    try:
        read_histories(client, runs, ["loss", "rate"])
    finally:
        event.remove(engine, "before_cursor_execute", count)
    return len(counted)


def test_as_many_queries_for_forty_runs_as_for_two(client):
    runs = log_runs(client, "many", 40, points=3)
    assert count_queries(client, runs[:2]) == count_queries(client, runs) == 2


def test_no_point_is_lost_where_a_request_takes_fewer_than_there_are(client, monkeypatch):
    runs = log_runs(client, "long", 5, points=7)
    monkeypatch.setattr(histories, "POINTS_PER_REQUEST", 10)
    read = read_histories(client, runs, ["loss", "absent"])
    assert set(read) == {(run.info.run_id, "loss") for run in runs}
    for offset, run in enumerate(runs):
        values = [(point.step, point.value) for point in read[run.info.run_id, "loss"]]
        assert values == [(step, offset + step / 10) for step in range(7)]
