"""A run in MLflow: every figure once, with its step and time, however often the run is opened again."""

import getpass
import json
import math
import os
import platform

import pytest

from rampline.config import flatten
from rampline.record.attempts import Attempts
from rampline.record.metrics import Source, logged
from rampline.tracking.run_log import RunLog
from rampline.tracking.store import open_tracking

RESULT = {
    "status": "complete",
    "epochs": 3,
    "best_epoch": 2,
    "best_val_accuracy": 0.42,
    "train_seconds": 4.5,
    "wall_seconds": 12.0,
    "attempts": 2,
}


def test_params_are_every_leaf_of_the_configuration_and_what_the_chief_derived(
    client, study_log, make_run_directory, started
):
    directory = make_run_directory()
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    log.handle(started())
    log.close("COMPLETE")

    params = client.get_run(log.run_id).data.params
    assert set(flatten(directory.read_config())) <= set(params)
    assert params["learning_rate.peak"] == "0.001"
    assert params["data.manual_dir"] == "None"
    assert params["learning_rate.step_epochs"] == "[3.0, 7.0]"
    derived = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch", "peak_learning_rate")
    assert [params[name] for name in derived] == ["2", "32", "64", "21", "0.002"]


def test_tags_are_those_of_the_contract(client, study_log, make_run_directory):
    directory = make_run_directory("mirrored", strategy="mirrored", cluster={"replicas": 2, "virtual_devices": 2})
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    tags = client.get_run(log.run_id).data.tags
    assert tags["mlflow.parentRunId"] == study_log.run_id
    expected = {
        "rampline.kind": "run",
        "rampline.run": "mirrored",
        "rampline.study": "digits",
        "rampline.execution": "e1",
        "rampline.strategy": "mirrored",
        "rampline.run_dir": str(directory.path),
        "rampline.attempts": "1",
        "rampline.data_fingerprint": "0123abcd" * 8,
        "rampline.git_commit": "a" * 40,
        "mlflow.source.git.commit": "a" * 40,
        "mlflow.source.name": "rampline run digits",
        "mlflow.user": getpass.getuser(),
        "rampline.published.train_seconds": "2090.0",
        "rampline.published.test_accuracy": "0.94",
    }
    assert {name: tags.get(name) for name in expected} == expected
    assert client.get_run(log.run_id).info.run_name == "mirrored"


def test_epochs_have_their_number_as_step_and_the_time_of_their_event(
    client, study_log, make_run_directory, started, epoch, history
):
    log = RunLog.open(client, make_run_directory(), parent_run_id=study_log.run_id)
    for event in (started(), epoch(1), {"event": "progress", "time": 1.0, "loss": 9.0}, epoch(2), epoch(3)):
        log.handle(event)
    log.close("COMPLETE")

    assert history(client, log.run_id, "train_loss") == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert history(client, log.run_id, "elapsed_seconds") == [(1, 1.5), (2, 3.0), (3, 4.5)]
    assert set(client.get_run(log.run_id).data.metrics) == set(logged(Source.EPOCH))
    times = [point.timestamp for point in client.get_metric_history(log.run_id, "val_accuracy")]
    assert times == [1_010_000, 1_020_000, 1_030_000]


def test_figures_that_are_not_finite_are_left_out(client, study_log, make_run_directory, epoch, history):
    log = RunLog.open(client, make_run_directory(), parent_run_id=study_log.run_id)
    log.handle(epoch(1, train_loss=None, val_loss=math.nan, learning_rate=math.inf))
    log.handle(epoch(2))
    log.close("FAILED", "loss is not finite")
    assert history(client, log.run_id, "train_loss") == [(2, 0.5)]
    assert history(client, log.run_id, "val_loss") == [(2, 1.0)]
    assert history(client, log.run_id, "learning_rate") == [(2, 0.002)]
    assert [step for step, _ in history(client, log.run_id, "val_accuracy")] == [1, 2]


def test_a_run_that_is_opened_again_gets_what_is_missing_and_nothing_twice(
    client, home, study_log, make_run_directory, started, epoch, append_events, history
):
    directory = make_run_directory()
    append_events(directory, started())
    first = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    for number in (1, 2):
        append_events(directory, epoch(number))
        first.handle(epoch(number))
    # The process that delivers dies here; the chief writes on, and is itself continued from epoch 2's checkpoint.
    append_events(directory, epoch(3, val_accuracy=0.1), started(attempt=2, time=2000.0), epoch(3))

    again = RunLog.open(open_tracking(home), directory, parent_run_id=study_log.run_id)
    for event in (started(attempt=2), epoch(1), epoch(2), epoch(3), epoch(4)):
        again.handle(event)
    again.log_result(RESULT)
    again.log_result(RESULT)
    again.close("COMPLETE")

    assert again.run_id == first.run_id
    assert history(client, again.run_id, "val_accuracy") == [(n, pytest.approx(0.4 + n / 100)) for n in (1, 2, 3, 4)]
    for metric in logged(Source.EPOCH):
        assert [step for step, _ in history(client, again.run_id, metric)] == [1, 2, 3, 4]
    assert history(client, again.run_id, "train_seconds") == [(0, 4.5)]
    assert client.get_run(again.run_id).data.tags["rampline.attempts"] == "2"
    assert len(client.search_runs([client.get_run(again.run_id).info.experiment_id])) == 2


def test_the_cost_is_the_price_of_the_hours_from_start_to_end(client, study_log, make_run_directory):
    priced = RunLog.open(
        client, make_run_directory("priced", cluster={"price_per_hour": 36.0}), parent_run_id=study_log.run_id
    )
    free = RunLog.open(client, make_run_directory("free"), parent_run_id=study_log.run_id)
    priced.log_result(RESULT)
    free.log_result(RESULT)
    metrics = client.get_run(priced.run_id).data.metrics
    assert metrics["cost_usd"] == pytest.approx(36.0 * 12.0 / 3600)
    assert (metrics["train_seconds"], metrics["wall_seconds"]) == (4.5, 12.0)
    assert (metrics["best_epoch"], metrics["best_val_accuracy"]) == (2, 0.42)
    assert "cost_usd" not in client.get_run(free.run_id).data.metrics


@pytest.mark.parametrize(
    ("status", "in_mlflow"),
    [("COMPLETE", "FINISHED"), ("FAILED", "FAILED"), ("KILLED", "KILLED"), ("PREEMPTED", "KILLED")],
)
def test_a_closed_run_has_its_status_and_what_made_it_fail(client, study_log, make_run_directory, status, in_mlflow):
    log = RunLog.open(client, make_run_directory(), parent_run_id=study_log.run_id)
    run = client.get_run(log.run_id)
    assert (run.info.status, run.data.tags["rampline.status"]) == ("RUNNING", "RUNNING")
    log.handle({"event": "failed", "time": 1.0, "message": "worker 1 died"})
    log.close(status, None if status == "COMPLETE" else "worker 1 died: see logs/worker-1.log")
    run = client.get_run(log.run_id)
    assert (run.info.status, run.data.tags["rampline.status"]) == (in_mlflow, status)
    expected = "worker 1 died" + ("" if status == "COMPLETE" else ": see logs/worker-1.log")
    assert run.data.tags["rampline.failure"] == expected

    RunLog.open(client, make_run_directory(), parent_run_id=study_log.run_id).close("COMPLETE")
    run = client.get_run(log.run_id)
    assert run.info.status == "FINISHED"
    assert "rampline.failure" not in run.data.tags


def test_a_run_whose_store_was_deleted_is_logged_anew_from_its_directory(
    client, study_log, make_run_directory, started, epoch, append_events, history
):
    directory = make_run_directory()
    append_events(directory, started(), epoch(1), epoch(2))
    first = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    first.close("KILLED")
    client.delete_run(first.run_id)
    second = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    second.close("COMPLETE")
    assert second.run_id != first.run_id
    assert [step for step, _ in history(client, second.run_id, "train_loss")] == [1, 2]


def test_artifacts_of_a_trained_run(client, study_log, make_run_directory, started, epoch, append_events):
    directory = make_run_directory()
    append_events(directory, started(), epoch(1), epoch(2))
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    log.close("COMPLETE")
    assert [file.path for file in client.list_artifacts(log.run_id)] == [
        "config.json",
        "data_report",
        "learning_rate.png",
    ]
    report = [file.path for file in client.list_artifacts(log.run_id, "data_report")]
    assert report == ["data_report/data_report.csv", "data_report/data_report.json"]


def test_a_warning_becomes_a_tag_and_stopped_is_passed_over(client, study_log, make_run_directory, append_events):
    directory = make_run_directory()
    warnings = [{"event": "warning", "time": 1.0, "message": f"{name} was restarted"} for name in ("first", "second")]
    append_events(directory, *warnings)
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    assert client.get_run(log.run_id).data.tags["rampline.warning"] == "second was restarted"
    log.handle({"event": "warning", "time": 2.0, "message": "http://me:secret-word@host is slow"})
    log.handle({"event": "stopped", "time": 3.0, "step": 7, "epoch": 1})
    assert client.get_run(log.run_id).data.tags["rampline.warning"] == "http://***@host is slow"


def test_an_identical_point_is_stored_once(client, study_log, make_run_directory, epoch):
    # What makes a repeated request harmless: see `RunLog`.
    directory = make_run_directory()
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    log.handle(epoch(1))
    other = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    other._epochs.clear()
    other.handle(epoch(1))
    other.handle(epoch(2))
    for metric in logged(Source.EPOCH):
        assert [point.step for point in client.get_metric_history(log.run_id, metric)] == [1, 2]


def test_a_run_that_is_delivered_later_has_the_times_at_which_it_ran(
    client, study_log, make_run_directory, started, epoch, append_events
):
    directory = make_run_directory()
    append_events(directory, started(time=1_700_000_000.25), epoch(1))
    os.utime(directory.events_file, (1_700_000_100.5, 1_700_000_100.5))
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    log.close("KILLED")
    info = client.get_run(log.run_id).info
    assert (info.start_time, info.end_time) == (1_700_000_000_250, 1_700_000_100_500)


def test_a_run_that_went_on_elsewhere_says_which_epochs_were_trained_where(
    client, study_log, make_run_directory, started, append_events, monkeypatch
):
    directory, hosts = make_run_directory(), ["alpha", "alpha", "beta", "alpha"]
    starts = []
    for number, (host, first_epoch) in enumerate(zip(hosts, [1, 2, 4, 3], strict=True), start=1):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        assert Attempts(directory.attempts_file).begin().number == number
        starts.append(started(attempt=number, first_epoch=first_epoch))
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    for event in starts[:3]:
        append_events(directory, event)
        log.handle(event)
    tags = client.get_run(log.run_id).data.tags
    cores = f"{os.cpu_count()} cores"
    on_alpha, on_beta = ([first, f"{host} ({cores})"] for first, host in ((1, "alpha"), (4, "beta")))
    assert json.loads(tags["rampline.machines"]) == [on_alpha, on_beta]
    assert (tags["rampline.environment.host"], "rampline.environment.tensorflow" in tags) == ("beta", True)
    # Delivered by another process, after epoch 3 was begun again on the first machine.
    append_events(directory, starts[3])
    RunLog.open(client, directory, parent_run_id=study_log.run_id)
    assert json.loads(client.get_run(log.run_id).data.tags["rampline.machines"]) == [on_alpha]


def test_a_run_of_an_earlier_version_does_not_know_its_first_machine(
    client, study_log, make_run_directory, started, append_events
):
    directory = make_run_directory()
    directory.attempts_file.write_text(json.dumps({"event": "attempt", "time": 1.0, "number": 1}) + "\n")
    Attempts(directory.attempts_file).begin()
    append_events(directory, started(), started(attempt=2, first_epoch=3))
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    machines = json.loads(client.get_run(log.run_id).data.tags["rampline.machines"])
    assert [first for first, _ in machines] == [1, 3]
    assert (machines[0][1], machines[1][1].startswith(platform.node())) == ("", True)
