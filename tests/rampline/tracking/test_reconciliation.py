"""A run of MLflow is brought to what a record says: nothing twice, nothing lost, and FINISHED last."""

import json
import math
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from rampline.comparison.runs import read_comparison
from rampline.files import write_json
from rampline.record.delivery_state import RUNNING, mark_undelivered
from rampline.record.metric import Source
from rampline.record.metrics import logged
from rampline.tracking.delivery import Projection
from rampline.tracking.reconciliation import POINTS_AT_ONCE, Known, Moment, Record, ending, reconcile
from rampline.tracking.store import open_tracking

RESULT = {"status": "complete", "epochs": 3, "best_epoch": 2, "train_seconds": 4.5, "wall_seconds": 12.0, "attempts": 2}


def write(client: MlflowClient, run_id: str, record: Record) -> list[Moment]:
    return reconcile(client, record, Known.ask(client, run_id))


def epoch(number: int, **figures: float | None) -> Moment:
    return Moment(series="clock", step=number, time=1000.0 + number, figures={"clock": float(number), **figures})


def test_a_run_directory_is_in_mlflow_once_however_often_it_is_delivered(
    client, home, parent, deliver, make_run_directory, started, append_events, evaluation, history, epoch
):
    directory = make_run_directory()
    append_events(directory, started())
    mark_undelivered(directory.path, RUNNING)
    first = Projection(client, directory, parent)
    for number in (1, 2):
        append_events(directory, epoch(number))
        assert first.update() == (RUNNING, 1)
    assert first.update() == (RUNNING, 0)
    # The process that delivers dies here; the chief writes on, and is itself continued from epoch 2's checkpoint.
    append_events(directory, epoch(3, val_accuracy=0.1), started(attempt=2, time=2000.0), epoch(3), epoch(4))
    write_json(directory.result_file, RESULT)
    write_json(directory.evaluation_file, evaluation)
    mark_undelivered(directory.path, "COMPLETE")
    again = Projection(open_tracking(home), directory, parent)
    assert again.update() == ("COMPLETE", 2)
    assert again.update() == ("COMPLETE", 0)
    run_id = deliver(directory)

    assert run_id == first.run_id
    assert history(client, run_id, "val_accuracy") == [(n, pytest.approx(0.4 + n / 100)) for n in (1, 2, 3, 4)]
    for metric in logged(Source.EPOCH):
        assert [step for step, _ in history(client, run_id, metric)] == [1, 2, 3, 4]
    for metric, value in (("train_seconds", 4.5), ("test_accuracy", 0.9)):
        assert history(client, run_id, metric) == [(0, value)]
    times = [point.timestamp for point in client.get_metric_history(run_id, "val_accuracy")]
    # Epoch 3 is there twice in one instant: the one that counts is the later.
    assert times == [1_010_000, 1_020_000, 1_030_002, 1_040_000]
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "baseline")
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.data.tags["rampline.attempts"] == "2"
    texts = ("learning_rate.peak", "data.manual_dir", "learning_rate.step_epochs", "replicas", "peak_learning_rate")
    assert [run.data.params[name] for name in texts] == ["0.001", "None", "[3.0, 7.0]", "2", "0.002"]
    assert [file.path for file in client.list_artifacts(run_id, "data_report")] == [
        "data_report/data_report.csv",
        "data_report/data_report.json",
    ]
    assert {file.path for file in client.list_artifacts(run_id)} == {
        *("config.json", "data_report", "learning_rate.png", "evaluation.json"),
        *("confusion_matrix.png", "classification_report.csv", "classification_report.json"),
    }
    assert len(client.search_runs([run.info.experiment_id])) == 2


def test_a_figure_that_changed_is_the_latest_and_a_file_that_changed_is_uploaded(
    client, deliver, make_run_directory, evaluation, history
):
    directory = make_run_directory()
    write_json(directory.result_file, RESULT)
    write_json(directory.evaluation_file, evaluation)
    run_id = deliver(directory)
    write_json(directory.evaluation_file, evaluation | {"test_accuracy": 0.95})
    assert deliver(directory) == run_id
    assert history(client, run_id, "test_accuracy") == [(0, 0.9), (0, 0.95)]
    assert client.get_run(run_id).data.metrics["test_accuracy"] == 0.95
    uploaded = json.loads(Path(client.download_artifacts(run_id, "evaluation.json")).read_text())
    assert uploaded["test_accuracy"] == 0.95


def test_every_run_and_its_study_have_the_dataset_once(client, parent, deliver, make_run_directory):
    run_ids = [deliver(make_run_directory(name)) for name in ("baseline", "other", "baseline")]
    for run_id in (run_ids[-1], parent):
        (given,) = client.get_run(run_id).inputs.dataset_inputs
        assert (given.dataset.name, given.dataset.digest) == ("digits", "0123abcd0123-0123")
        assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]
    profile, source = json.loads(given.dataset.profile), json.loads(given.dataset.source)
    assert (profile["train_images"], profile["validation_images"], profile["classes"]) == (100, 10, 2)
    assert profile["fingerprint"] == "0123abcd" * 8
    assert source["uri"].endswith("data/digits-0123")
    assert "(8, 8, 1)" in given.dataset.schema
    experiment = client.get_run(parent).info.experiment_id
    found = client.search_runs([experiment], "dataset.name = 'digits' and dataset.digest LIKE '0123abcd%'")
    assert len(found) == 3


def test_a_run_that_was_deleted_in_mlflow_is_made_anew(
    client, deliver, make_run_directory, started, epoch, append_events, history
):
    directory = make_run_directory()
    append_events(directory, started(), epoch(1), epoch(2))
    first = deliver(directory, "KILLED", "interrupted")
    client.delete_run(first)
    second = deliver(directory)
    assert second != first
    assert [step for step, _ in history(client, second, "train_loss")] == [1, 2]
    assert {file.path for file in client.list_artifacts(second)} >= {"config.json", "learning_rate.png"}


@pytest.mark.parametrize(
    ("status", "in_mlflow"),
    [("COMPLETE", "FINISHED"), ("PREEMPTED", "KILLED")],
)
def test_a_run_that_ended_can_run_again(client, parent, status, in_mlflow):
    failure = None if status == "COMPLETE" else "worker 1 died at http://me:secret-word@host"
    write(client, parent, Record(status=status, tags=ending(status, failure), ended=1_700_000_000.5))
    run = client.get_run(parent)
    assert (run.info.status, run.data.tags["rampline.status"], run.info.end_time) == (
        in_mlflow,
        status,
        1_700_000_000_500,
    )
    assert run.data.tags.get("rampline.failure") == (failure and "worker 1 died at http://***@host")
    write(client, parent, Record(status=RUNNING, tags=ending(RUNNING)))
    run = client.get_run(parent)
    assert (run.info.status, run.data.tags["rampline.status"]) == ("RUNNING", "RUNNING")
    assert "rampline.failure" not in run.data.tags


class Refuses(MlflowClient):
    """A store that takes no files."""

    def log_artifact(self, *arguments, **named) -> None:
        raise ConnectionResetError("connection reset by peer")


@pytest.mark.parametrize(("status", "expected"), [("COMPLETE", "RUNNING"), ("FAILED", "FAILED")])
def test_finished_is_told_last_and_any_other_end_first(home, client, parent, tmp_path, status, expected):
    (tmp_path / "report.html").write_text("report")
    record = Record(status=status, artifacts={"report.html": tmp_path / "report.html"})
    with pytest.raises(ConnectionResetError):
        write(Refuses(tracking_uri=f"sqlite:///{home.tracking_database}"), parent, record)
    assert client.get_run(parent).info.status == expected
    write(client, parent, record)
    assert client.get_run(parent).info.status == ("FINISHED" if status == "COMPLETE" else "FAILED")
    assert [file.path for file in client.list_artifacts(parent)] == ["report.html"]


def test_figures_that_are_not_finite_are_left_out(client, parent, history):
    write(client, parent, Record(moments=[epoch(1, loss=None, rate=math.inf), epoch(2, loss=0.5, rate=math.nan)]))
    assert history(client, parent, "loss") == [(2, 0.5)]
    assert history(client, parent, "rate") == []
    assert history(client, parent, "clock") == [(1, 1.0), (2, 2.0)]


def test_an_identical_point_is_stored_once(client, parent, history):
    # What makes a repeated request harmless: see `Known`.
    known = Known.ask(client, parent)
    reconcile(client, Record(moments=[epoch(1)]), known)
    known.times.clear()
    known.figures.clear()
    reconcile(client, Record(moments=[epoch(1), epoch(2)]), known)
    assert history(client, parent, "clock") == [(1, 1.0), (2, 2.0)]


class FailsAt(MlflowClient):
    """A store that goes away after some requests."""

    requests_left = 2

    def log_batch(self, *arguments, **named) -> None:
        FailsAt.requests_left -= 1
        if FailsAt.requests_left < 0:
            raise ConnectionResetError("connection reset by peer")
        super().log_batch(*arguments, **named)


def test_a_long_history_goes_out_in_requests_of_whole_moments(home, client, parent, history):
    moments = [epoch(number, **{f"m{i}": float(i) for i in range(300)}) for number in range(20)]
    with pytest.raises(ConnectionResetError):
        write(FailsAt(tracking_uri=f"sqlite:///{home.tracking_database}"), parent, Record(moments=moments))
    whole = 2 * (POINTS_AT_ONCE // 301)
    for metric in ("clock", "m0", "m299"):
        assert [step for step, _ in history(client, parent, metric)] == list(range(whole))
    assert len(write(client, parent, Record(moments=moments))) == 20 - whole
    for metric in ("clock", "m0", "m299"):
        assert [step for step, _ in history(client, parent, metric)] == list(range(20))


def test_a_second_comparison_replaces_the_first(client, parent, tmp_path, history):
    table, report = tmp_path / "comparison.csv", tmp_path / "report.html"
    for speedup, text in ((1.5, "first"), (1.5, "second"), (1.8, "third")):
        table.write_text(text)
        report.write_text(text)
        record = Record(
            params={"strategy/multi-worker": "multi_worker"},
            moments=[Moment(figures={"speedup/multi-worker": speedup}, time=1000.0 + speedup)],
            tags={"mlflow.note.content": text},
            artifacts={file.name: file for file in (table, report)},
        )
        write(client, parent, record)
    run = client.get_run(parent)
    assert run.data.params == {"strategy/multi-worker": "multi_worker"}
    assert history(client, parent, "speedup/multi-worker") == [(0, 1.5), (0, 1.8)]
    assert run.data.metrics["speedup/multi-worker"] == 1.8
    assert run.data.tags["mlflow.note.content"] == "third"
    assert [file.path for file in client.list_artifacts(parent)] == ["comparison.csv", "report.html"]
    assert Path(client.download_artifacts(parent, "report.html")).read_text() == "third"


def test_an_epoch_that_was_trained_again_has_the_later_figures(
    client, parent, make_run_directory, started, append_events, epoch
):
    directory = make_run_directory()
    append_events(directory, started(), *map(epoch, (1, 2, 3)))
    mark_undelivered(directory.path, RUNNING)
    projection = Projection(client, directory, parent)
    assert projection.update() == (RUNNING, 3)
    # Its checkpoint was lost with the machine.
    lost, again = epoch(3), epoch(3, images_per_second=999.0)
    append_events(directory, started(attempt=2, time=2000.0), again | {"time": lost["time"] + 1000})
    assert projection.update() == (RUNNING, 1)
    assert Projection(client, directory, parent).update() == (RUNNING, 0)
    comparison = read_comparison(client, client.get_experiment(client.get_run(parent).info.experiment_id).name, parent)
    assert comparison.epochs["images_per_second"].tolist()[-1] == 999
    assert comparison.epochs["epoch"].tolist() == [1, 2, 3]
