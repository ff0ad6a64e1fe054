"""Delivery never makes a run wait, loses nothing and repeats nothing, whenever MLflow goes away and comes back."""

import contextlib
import shutil
import sqlite3
import threading
import time

import pytest
from command_line import wait_until
from mlflow.tracking import MlflowClient
from small_disk import fill, small_disk

from rampline.files import write_json
from rampline.record.delivery_state import is_undelivered, read_delivery
from rampline.record.home import Home
from rampline.record.metric import Source
from rampline.record.metrics import logged
from rampline.tracking import delivery as delivery_module
from rampline.tracking.delivery import Delivery, Projection, deliver_news, deliver_run, is_delivered
from rampline.tracking.experiment import begin_run
from rampline.tracking.store import TrackingError, experiment_id, open_tracking

RESULT = {"train_seconds": 4.5, "wall_seconds": 12.0, "attempts": 2}


class LosesAnswers(MlflowClient):
    """The store takes a batch, and the answer is lost: what a server does that dies after its commit."""

    lost = 0

    def log_batch(self, *arguments, **named) -> None:
        super().log_batch(*arguments, **named)
        if named.get("metrics") and LosesAnswers.lost < 3:
            LosesAnswers.lost += 1
            raise ConnectionResetError("connection reset by peer")


def rename_table(home: Home, name: str, new_name: str) -> None:
    with contextlib.closing(sqlite3.connect(home.tracking_database)) as connection:
        connection.execute(f"ALTER TABLE {name} RENAME TO {new_name}")


def rows(home: Home, metric: str) -> list[int]:
    """Steps of a metric in MLflow's own table, in the order they were written."""
    with contextlib.closing(sqlite3.connect(home.tracking_database)) as connection:
        found = connection.execute("SELECT step FROM metrics WHERE key = ? ORDER BY rowid", (metric,))
        return [step for (step,) in found]


def run_of(client, parent):
    (run,) = client.search_runs([client.get_run(parent).info.experiment_id], "tags.`rampline.kind` = 'run'")
    return run


def test_an_event_never_waits_and_all_arrive_in_order_after_an_outage(
    client, home, parent, make_run_directory, append_events, started, epoch
):
    directory, lines = make_run_directory(), []
    events = [started(attempt=2), *(epoch(number) for number in range(1, 6))]
    rename_table(home, "metrics", "metrics_away")
    delivery = Delivery(lambda: open_tracking(home), directory, parent_run_id=parent, log=lines.append)
    for event in events:
        append_events(directory, event)
        began = time.monotonic()
        delivery.tell()
        assert time.monotonic() - began < 0.05
    wait_until(lambda: delivery.tell() or bool(lines), 20)
    rename_table(home, "metrics_away", "metrics")
    write_json(directory.result_file, RESULT)
    assert delivery.close("COMPLETE")
    assert lines[0].startswith("MLflow does not answer, training goes on: ")
    assert lines[1].startswith("MLflow answers again after ")
    assert len(lines) == 2
    for metric in logged(Source.EPOCH):
        assert rows(home, metric) == [1, 2, 3, 4, 5]
    run = run_of(client, parent)
    assert (run.info.status, run.data.tags["rampline.status"]) == ("FINISHED", "COMPLETE")
    assert (run.data.tags["rampline.attempts"], run.data.metrics["train_seconds"]) == ("2", 4.5)
    assert not is_undelivered(directory.path)


def test_a_full_disk_is_called_that(home, parent, make_run_directory, started, epoch, append_events, tmp_path):
    directory, lines = make_run_directory(), []
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        full = Home(root=disk / "home")
        full.root.mkdir()
        shutil.copy(home.tracking_database, full.tracking_database)
        filler = fill(disk)
        delivery = Delivery(lambda: open_tracking(full), directory, parent_run_id=parent, log=lines.append)
        append_events(directory, started(attempt=1), *(epoch(number) for number in range(1, 4)))
        wait_until(lambda: delivery.tell() or bool(lines), 20)
        assert lines[0].startswith("the disk is full, training goes on: ")
        filler.unlink()
        assert delivery.close("COMPLETE")
        assert rows(full, logged(Source.EPOCH)[0]) == [1, 2, 3]


def test_what_was_committed_without_an_answer_is_not_written_twice(
    client, home, parent, make_run_directory, append_events, started, epoch, monkeypatch
):
    monkeypatch.setattr(LosesAnswers, "lost", 0)
    monkeypatch.setattr(delivery_module, "FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(delivery_module, "INTERVAL_SECONDS", 0.05)
    directory = make_run_directory()
    uri = f"sqlite:///{home.tracking_database}"
    delivery = Delivery(lambda: LosesAnswers(tracking_uri=uri), directory, parent_run_id=parent, log=lambda line: None)
    append_events(directory, started())
    for number in range(1, 5):
        append_events(directory, epoch(number))
        wait_until(lambda number=number: number in rows(home, "train_loss"), 30)
    assert delivery.close("COMPLETE")
    assert LosesAnswers.lost == 3
    for metric in logged(Source.EPOCH):
        assert rows(home, metric) == [1, 2, 3, 4]


def test_without_mlflow_the_end_is_marked_and_delivered_later(
    client, home, parent, make_run_directory, append_events, epoch, monkeypatch
):
    monkeypatch.setitem(delivery_module.CLOSE_SECONDS, "FAILED", 0.5)
    directory, lines = make_run_directory(), []
    append_events(directory, epoch(1), epoch(2))

    def away() -> MlflowClient:
        raise TrackingError("MLflow at http://127.0.0.1:9 cannot be used")

    delivery = Delivery(away, directory, parent_run_id=parent, log=lines.append)
    assert not is_delivered(away, directory)
    began = time.monotonic()
    assert not delivery.close("FAILED", "worker 1 died")
    assert time.monotonic() - began < 5
    assert lines[-1] == "baseline: MLflow has not got all of it: `rampline sync digits` delivers the rest later"
    state = read_delivery(directory.path)
    assert state is not None
    assert (state.status, state.failure, state.is_running) == ("FAILED", "worker 1 died", False)
    assert rows(home, "train_loss") == []


class HangsAtTheEnd(MlflowClient):
    """A store that does not answer when a run ends, until it is let go."""

    let_go = threading.Event()

    def set_terminated(self, *arguments, **named) -> None:
        assert HangsAtTheEnd.let_go.wait(60)
        super().set_terminated(*arguments, **named)


def test_a_delivery_that_was_given_up_marks_nothing_as_delivered(
    client, home, parent, deliver, make_run_directory, evaluation, monkeypatch
):
    monkeypatch.setitem(delivery_module.CLOSE_SECONDS, "COMPLETE", 2.0)
    directory, others = make_run_directory(), threading.enumerate()
    uri = f"sqlite:///{home.tracking_database}"
    delivery = Delivery(lambda: HangsAtTheEnd(tracking_uri=uri), directory, parent_run_id=parent, log=print)
    (thread,) = (one for one in threading.enumerate() if one not in others and one.name == "mlflow-delivery")
    write_json(directory.result_file, RESULT)
    assert not delivery.close("COMPLETE")
    write_json(directory.evaluation_file, evaluation)
    HangsAtTheEnd.let_go.set()
    thread.join(60)
    assert not thread.is_alive()
    assert is_undelivered(directory.path)
    assert client.get_run(deliver(directory)).data.metrics["test_accuracy"] == 0.9


def test_news_wait_for_what_came_before_them_and_are_marked(
    client, home, parent, deliver, make_run_directory, evaluation
):
    directory = make_run_directory()
    write_json(directory.result_file, RESULT)
    with pytest.raises(TrackingError, match=r"/baseline has no run in MLflow"):
        deliver_run(client, directory)
    run_id = deliver(directory)
    write_json(directory.evaluation_file, evaluation)
    assert deliver_news(lambda: client, directory) == ""
    assert client.get_run(run_id).data.metrics["test_accuracy"] == 0.9
    rename_table(home, "metrics", "metrics_away")
    write_json(directory.evaluation_file, evaluation | {"test_accuracy": 0.8})
    assert "cannot be logged to MLflow" in deliver_news(lambda: client, directory)
    assert is_undelivered(directory.path)
    rename_table(home, "metrics_away", "metrics")
    assert deliver_news(lambda: client, directory) == "what came before it is not delivered yet"


class RepeatsRequests(MlflowClient):
    """What a slow server makes of a request that MLflow's client repeats, because the answer does not come in time."""

    def create_run(self, *arguments, **named):
        super().create_run(*arguments, **named)
        return super().create_run(*arguments, **named)


def test_a_request_that_was_repeated_makes_one_run(home, client, make_run_directory):
    repeats, experiment = RepeatsRequests(client.tracking_uri), experiment_id(client, "digits", home)
    parent = begin_run(repeats, experiment, study="digits", execution="e1")
    projection = Projection(repeats, make_run_directory(), parent)
    projection.update()
    assert {run.info.run_id for run in client.search_runs([experiment])} == {parent, projection.run_id}
