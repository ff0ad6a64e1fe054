"""The runs of an execution side by side, read from a real MLflow store, and what is derived from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from logged_runs import LoggedRun, there
from mlflow import MlflowClient
from mlflow.entities import Metric

from rampline.comparison.mlflow_reader import COMPARABLE
from rampline.comparison.recommendation import list_candidates, recommend
from rampline.comparison.runs import (
    choose_reference,
    is_missing,
    read_comparison,
    steady,
    with_published_speedup,
    with_scaling,
)
from rampline.comparison.sentences import list_remarks, summarise_cost, summarise_speed
from rampline.comparison.ways_section import make_views
from rampline.errors import InputError


def test_figures_of_every_run(compare, four_runs):
    comparison = compare("figures", four_runs, reference="baseline", command="rampline run figures")
    assert comparison.execution == "first"
    assert (comparison.reference, comparison.declared_reference) == ("baseline", "baseline")
    assert comparison.command == "rampline run figures"
    assert comparison.runs["run"].tolist() == ["baseline", "short", "mirrored", "multi-worker"]

    baseline, short, mirrored, failed = comparison.rows
    assert baseline["images_per_second"] == 1000  # median of 1000, 1100, 900: the first epoch traces
    assert (baseline["images_per_second_min"], baseline["images_per_second_max"]) == (900, 1100)
    assert (baseline["best_epoch"], baseline["best_val_accuracy"], baseline["last_val_accuracy"]) == (2, 0.95, 0.94)
    assert (baseline["speedup"], baseline["scaling_efficiency"]) == (1.0, 1.0)
    assert baseline["published_train_seconds"] == 2090
    assert (baseline["test_accuracy"], baseline["test_split"]) == (0.94, "test")

    assert (short["epochs"], short["speedup"]) == (2, 1.0)
    assert math.isnan(short["train_seconds_vs_reference"])  # two epochs against four

    assert (mirrored["strategy"], mirrored["engine"], mirrored["replicas"]) == ("mirrored", "loop", 2)
    assert (mirrored["per_replica_batch_size"], mirrored["global_batch_size"]) == (32, 64)
    assert mirrored["speedup"] == pytest.approx(1.5)
    assert mirrored["scaling_efficiency"] == pytest.approx(0.75)
    assert mirrored["train_seconds_vs_reference"] == pytest.approx(0.8)
    assert mirrored["cost_usd"] == 0.02

    assert (failed["status"], failed["failure"]) == ("FAILED", "worker 1 ended with exit status -9")
    assert failed["images_per_second"] == 400  # its only epoch
    assert all(math.isnan(failed[key]) for key in ("test_accuracy", "train_seconds", "speedup", "scaling_efficiency"))


def test_explanation_scores_and_settings(compare, four_runs):
    explained = LoggedRun(
        name="explained",
        epochs=[(0.9, 100, 1e-3, 1)] * 3,
        curves={"train_accuracy": [0.5, 0.8, 0.7], "epoch_seconds": [9, 2, 4]},
        metrics={"test_accuracy": 0.9, "test_examples": 360, "step_ms_sync": 1.5, "ceiling_images_per_second": 800}
        | {"startup_seconds": 7.25, "unexplained_seconds": 0.5},
        params={"model.name": "convnet", "data.source": "digits", "data.prefetch": "auto", "steps_per_call": "16"},
        tags={"rampline.verdict": "sync-bound: it waits.", "rampline.bound": "sync"},
    )
    comparison = compare("explained", [explained, four_runs[1]])
    row, bare = comparison.rows
    assert (row["test_examples"], row["step_ms_sync"], row["ceiling_images_per_second"]) == (360, 1.5, 800)
    assert (row["startup_seconds"], row["unexplained_seconds"]) == (7.25, 0.5)
    assert (row["verdict"], row["bound"]) == ("sync-bound: it waits.", "sync")
    assert (row["train_accuracy"], row["epoch_seconds"]) == (0.7, 3)  # of the last epoch; median of 2 and 4
    assert (row["model.name"], row["data.source"], row["precision"]) == ("convnet", "digits", "float32")
    assert (row["data.prefetch"], row["data.cache"], row["steps_per_call"]) == ("auto", "", "16")
    assert math.isnan(bare["step_ms_input"])
    assert (bare["verdict"], bare["bound"]) == ("", "")
    assert is_missing(bare["test_examples"])
    assert {"step_ms_input", "verdict", "test_examples"} <= set(comparison.csv_table.columns)


def test_what_the_study_asks_of_a_recommendation(compare, four_runs):
    asked = compare("asks", four_runs, deadline_hours="3.5", accuracy_tolerance="0.005", published_source="a paper")
    assert (asked.deadline_hours, asked.accuracy_tolerance, asked.published_source) == (3.5, 0.005, "a paper")
    asked = compare("asks-nothing", four_runs)
    assert (asked.deadline_hours, asked.accuracy_tolerance, asked.published_source) == (None, 0.01, "")


def test_system_figures_are_read(compare, four_runs):
    busy = replace(four_runs[0], metrics={"system/chief-0/process_cpu_utilization_percentage": 150.0})
    (row,) = compare("system", [busy]).system
    assert (row["run"], row["role"], row["cpu_percent_mean"]) == ("baseline", "chief-0", 150.0)


def test_epochs_in_order(compare, four_runs):
    epochs = compare("epochs", four_runs).epochs_of("mirrored")
    assert epochs["epoch"].tolist() == [1, 2, 3, 4]
    assert epochs["val_accuracy"].tolist() == [0.70, 0.90, 0.95, 0.96]
    assert epochs["learning_rate"].tolist() == [1e-5, 1e-3, 1e-3, 5e-4]
    assert epochs["elapsed_seconds"].tolist() == [3, 4, 5, 6]


def test_epoch_logged_again_counts_once(client: MlflowClient, compare, four_runs):
    run_id = compare("again", four_runs[:1]).rows[0]["run_id"]
    later = client.get_run(run_id).info.start_time + 60_000
    client.log_batch(run_id, metrics=[Metric("val_accuracy", 0.97, later, 3)])
    row = read_comparison(client, "again").rows[0]
    assert (row["epochs"], row["best_epoch"], row["best_val_accuracy"]) == (4, 3, 0.97)


def test_epochs_that_were_lost_before_a_run_was_stopped_are_not_its_own(compare, four_runs):
    stopped = replace(four_runs[0], tags={"rampline.stopped": "after epoch 2 of 9: limit of 1 minute reached"})
    (row,) = compare("lost", [replace(stopped, curves={"val_top_3": [0.5, 0.75, 0.25, 0.125]})]).rows
    assert (row["epochs"], row["last_val_accuracy"], row["images_per_second"]) == (2, 0.95, 1000)
    assert row["val_top_3"] == 0.75


def test_latest_execution_unless_named(compare, client, log_study, four_runs):
    older = log_study("twice", four_runs, execution="older", reference="baseline")
    assert compare("twice", four_runs[:2], execution="newer", reference="baseline").execution == "newer"
    assert len(read_comparison(client, "twice").runs) == 2
    assert read_comparison(client, "twice", older).execution == "older"
    assert len(read_comparison(client, "twice", older).runs) == 4


@pytest.mark.parametrize(
    ("kept", "reference"),
    [([1, 2], "short"), ([3, 2], "mirrored"), ([3], "")],
    ids=["not run", "first one failed", "none finished"],
)
def test_first_finished_run_stands_in_for_the_reference(compare, four_runs, kept, reference):
    comparison = compare("stand-in", [four_runs[index] for index in kept], reference="baseline")
    assert comparison.reference == reference
    speedups = comparison.runs.set_index("run")["speedup"]
    assert speedups.get(reference, 1.0) == 1.0
    assert speedups.isna().tolist().count(True) == (1 if 3 in kept else 0)


def test_run_without_epochs_or_params(client: MlflowClient, log_study, four_runs):
    parent = log_study("bare", four_runs[:1], reference="baseline")
    experiment = client.get_run(parent).info.experiment_id
    tags = {"mlflow.parentRunId": parent, "rampline.kind": "run", "rampline.run": "bare"}
    bare = client.create_run(experiment, tags=tags, run_name="bare")
    # Without a kind: what a server made of a request that was repeated.
    client.create_run(experiment, tags={"mlflow.parentRunId": parent, "rampline.run": "baseline"}, run_name="baseline")
    baseline, row = read_comparison(client, "bare").rows
    assert baseline["epochs"] > 0
    assert (row["run"], row["run_id"], row["status"], row["epochs"]) == ("bare", bare.info.run_id, "RUNNING", 0)
    assert is_missing(row["replicas"])


def test_run_made_again_counts_once(client, log_study, four_runs):
    log_study("remade", [four_runs[3], four_runs[0], four_runs[3]])
    assert read_comparison(client, "remade").runs["run"].tolist() == ["multi-worker", "baseline"]


def test_environment(compare, four_runs):
    environment = compare("environment", four_runs[:2], **{"environment.keras": "3.15.1"}).environment
    assert environment.loc["short", ["git commit", "seed", "keras"]].tolist() == ["0123abc", "7", "3.15.1"]


def test_study_without_execution(compare, client: MlflowClient, log_study, four_runs):
    with pytest.raises(InputError, match=r"study nothing has no execution in MLflow at sqlite.*rampline run nothing"):
        read_comparison(client, "nothing")
    client.create_experiment("no-executions")
    with pytest.raises(InputError, match="no execution"):
        read_comparison(client, "no-executions")
    with pytest.raises(InputError, match="has no run 0123"):
        read_comparison(client, "nothing", "0123")
    log_study("no-runs", [])
    with pytest.raises(InputError, match="execution first has no runs"):
        read_comparison(client, "no-runs")
    child = compare("children", four_runs[:1]).rows[0]["run_id"]
    with pytest.raises(InputError, match="is not an execution"):
        read_comparison(client, "children", child)


ALPHA, BETA = "alpha (2 cores)", "beta (8 cores)"


def on_machines(run: LoggedRun, *machines: tuple[int, str]) -> LoggedRun:
    return replace(run, tags={**run.tags, "rampline.machines": json.dumps(machines)})


def test_speeds_and_times_are_compared_per_machine(compare, four_runs):
    baseline = on_machines(four_runs[0], (1, ALPHA))
    # 50, 1500 on alpha; 14000 and 17000 on beta, where it went on.
    later = [(accuracy, 10 * speed, *rest) for accuracy, speed, *rest in four_runs[2].epochs[2:]]
    moved = replace(four_runs[2], name="moved", epochs=[*four_runs[2].epochs[:2], *later])
    moved = on_machines(moved, (1, ALPHA), (3, BETA))
    elsewhere = on_machines(replace(four_runs[1], name="elsewhere"), (1, BETA))
    weights = {"model.weights": "/home/runs/machines/first/moved/checkpoints/step-00000008"}
    tuned = replace(four_runs[0], name="tuned", params=weights)
    # What does not say where it was trained was trained where the study was started.
    host = {"environment.host": "alpha", "environment.cpu cores": "2", "environment.gpus": "none"}
    comparison = compare("machines", [baseline, moved, elsewhere, tuned, four_runs[1]], reference="baseline", **host)
    rows = {row["run"]: row for row in comparison.rows}
    assert rows["moved"]["images_per_second"] == 1500
    assert rows["moved"]["speedup"] == 1.5
    assert (rows["short"]["speedup"], rows["short"]["machine"]) == (1.0, ALPHA)
    assert is_missing(rows["elsewhere"]["speedup"])
    assert [row["run"] for row in comparison.rows if not is_missing(row["train_seconds_vs_reference"])] == ["baseline"]
    assert [candidate.run for candidate in list_candidates(comparison)] == ["baseline", "short"]
    views = there(make_views(comparison))
    assert [view.run for view in views.runs] == ["baseline", "short"]
    answer = "Within 1 point of the best test accuracy that was weighed (baseline, 0.9400), short takes the least time"
    assert recommend(comparison).sentence.startswith(answer)
    assert summarise_cost(comparison)[0] == "From start to end the reference baseline takes 9.00 s, short takes 6.00 s."
    remarks = list_remarks(comparison)
    assert (
        "moved was trained from epoch 1 on alpha (2 cores), from epoch 3 on beta (8 cores): its images/s are those of "
        "its epochs on alpha (2 cores), and its time is not compared."
    ) in remarks
    assert (
        "elsewhere was trained on beta (8 cores), not on alpha (2 cores) as the reference: its speed and time are not "
        "compared."
    ) in remarks
    assert not any(remark.startswith(("baseline", "short")) for remark in remarks)


def test_where_all_others_were_trained_elsewhere_the_answers_say_so(compare, four_runs):
    runs = [on_machines(four_runs[0], (1, ALPHA)), on_machines(four_runs[1], (1, BETA))]
    comparison = compare("apart", runs, reference="baseline")
    assert summarise_speed(comparison) == (
        "baseline trains on 1,000 images/s; no other run was trained on its machine, so there is no speed to compare "
        "it with."
    )
    assert recommend(comparison).sentence.startswith("No other run can be weighed against baseline, which takes ")


def test_a_reference_that_moved_is_compared_where_it_ended(compare, four_runs):
    baseline = on_machines(four_runs[0], (1, BETA), (3, ALPHA))
    comparison = compare("moved-reference", [baseline, on_machines(four_runs[1], (1, ALPHA))], reference="baseline")
    assert comparison.rows[0]["images_per_second"] == 900  # of 1100 and 900, the first of which traces again
    assert comparison.runs["speedup"].tolist() == [1.0, pytest.approx(1000 / 900)]
    # Nothing was trained on one machine from start to end with the reference.
    assert list_candidates(comparison) == []
    answer = "No recommendation: the reference baseline was not trained on one machine alone."
    assert recommend(comparison).sentence == answer


def test_a_reference_that_told_its_result_elsewhere_is_compared_where_it_was_trained(compare, four_runs):
    baseline = on_machines(four_runs[0], (1, ALPHA), (5, BETA))
    comparison = compare("told-elsewhere", [baseline, on_machines(four_runs[1], (1, ALPHA))], reference="baseline")
    assert (comparison.reference, comparison.rows[0]["machine"]) == ("baseline", ALPHA)
    assert comparison.runs["speedup"].tolist() == [1.0, 1.0]


def test_a_reference_without_a_speed_is_told_as_such(compare, four_runs):
    silent = replace(four_runs[0], epochs=[(0.9, math.nan, 1e-3, 1)])
    comparison = compare("silent-reference", [silent, four_runs[1]], reference="baseline")
    told = "The study's reference baseline has no images/s: speed-up is measured against short instead."
    assert list_remarks(comparison)[0] == told


def make_rows(**changes: Any) -> list[dict[str, Any]]:
    columns = {
        "run": ["one", "two", "eight"],
        "repeat_of": [""] * 3,
        "status": ["FINISHED"] * 3,
        "images_per_second": [100.0, 160.0, 300.0],
        "replicas": [1, 2, 8],
        "epochs_in_all": [5, 5, 5],
        "fingerprint": ["a"] * 3,
        "engine": ["loop"] * 3,
        "steps_per_call": ["auto"] * 3,
        "batch.accumulate": ["auto"] * 3,
        "workers_of_attempts": [""] * 3,
        "global_batch_size": [64] * 3,
        "per_replica_batch_size": [64, 32, 8],
        **{key: ["None"] * 3 for key in COMPARABLE},
        "machine": ["here"] * 3,
        "machines": [((1, "here"),)] * 3,
        "train_seconds": [50.0, 30.0, 20.0],
        "train_seconds_in_all": [math.nan] * 3,
    }
    columns |= changes
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def find_scaling(rows: list[dict[str, Any]], reference: str, figure: str) -> list[float]:
    return [row[figure] for row in with_scaling(rows, reference)]


def test_efficiency_is_relative_to_the_replicas_of_the_reference():
    assert find_scaling(make_rows(), "two", "speedup") == pytest.approx([0.625, 1.0, 1.875])
    assert find_scaling(make_rows(), "two", "scaling_efficiency") == pytest.approx([1.25, 1.0, 0.46875])


@pytest.mark.parametrize(
    "change",
    [
        {"engine": ["loop", "fit", "loop"]},
        {"steps_per_call": ["auto", "1", "auto"]},
        {"batch.accumulate": ["8", "1", "1"]},  # micro-batches of 8, 32 and 8
        {"optimizer.name": ["adam", "sgd", "adam"]},
        {"precision": ["float32", "mixed_float16", "float32"]},
        {"workers_of_attempts": ["", "2, 1", ""]},
        {"global_batch_size": [64, 128, 512], "per_replica_batch_size": [64, 128, 64]},
    ],
    ids=str,
)
def test_efficiency_is_of_the_training_of_the_reference(change: dict[str, list[Any]]):
    assert find_scaling(make_rows(**change), "one", "speedup") == pytest.approx([1.0, 1.6, 3.0])
    efficiencies = find_scaling(make_rows(**change), "one", "scaling_efficiency")
    assert efficiencies == pytest.approx([1.0, math.nan, 0.375], nan_ok=True)


def test_a_repeat_of_the_reference_has_an_efficiency_as_the_first_training_has():
    rows = make_rows(replicas=[1, 1, 8], repeat_of=["", "one", ""])
    assert find_scaling(rows, "one", "scaling_efficiency") == pytest.approx([1.0, 1.6, 0.375])


def test_times_are_compared_for_equal_epochs_on_equal_data_only():
    epochs = find_scaling(make_rows(epochs_in_all=[5, 4, 5]), "one", "train_seconds_vs_reference")
    assert [math.isnan(figure) for figure in epochs] == [False, True, False]
    for key in ("fingerprint", "data.limit", "data.split_seed", "data.validation_fraction"):
        data = find_scaling(make_rows(**{key: ["a", "a", "b"]}), "one", "train_seconds_vs_reference")
        assert [math.isnan(figure) for figure in data] == [False, False, True]


def test_the_time_of_a_run_is_that_with_the_run_that_it_starts_from():
    rows = make_rows(train_seconds_in_all=[math.nan, 80.0, math.nan])
    assert find_scaling(rows, "one", "train_seconds_vs_reference") == [1.0, 1.6, 0.4]


def test_without_reference_nothing_is_derived():
    assert all(math.isnan(speedup) for speedup in find_scaling(make_rows(), "", "speedup"))


def test_without_a_speed_no_run_is_the_reference():
    assert choose_reference(make_rows(images_per_second=[math.nan] * 3), "one") == ""


def test_steady_throughput_leaves_out_the_epoch_that_traces():
    epochs = pd.DataFrame({"epoch": [1, 2, 3, 4], "images_per_second": [5.0, 90.0, math.nan, 110.0]})
    assert steady(epochs, "images_per_second", []) == [90.0, 110.0]
    assert steady(epochs.head(1), "images_per_second", [1]) == [5.0]
    # Started again with epoch 2: what is steady then; where nothing is, all that came later.
    assert steady(epochs, "images_per_second", [1, 2]) == [110.0]
    assert steady(epochs.head(2), "images_per_second", [1, 2]) == [90.0]
    assert steady(epochs, "images_per_second", [1, 2, 3, 4]) == [90.0, 110.0]


def test_a_run_that_was_started_again_has_the_speed_of_the_epochs_that_do_not_trace(compare, four_runs):
    speeds = [(0.9, speed, 1e-3, 1) for speed in (12, 30, 3000)]
    again = replace(four_runs[2], epochs=speeds, tags={"rampline.first_epochs": "[1, 2]"})
    (_, row) = compare("started-again", [four_runs[0], again], reference="baseline").rows
    assert (row["images_per_second"], row["images_per_second_min"], row["speedup"]) == (3000, 3000, 3)


def test_a_published_speedup_follows_from_published_times():
    times, told = [2090.0, 1046.0, math.nan, 887.0], [math.nan, math.nan, math.nan, 2.5]
    runs = pd.DataFrame({"run": ["one", "four", "ours", "told"], "published_train_seconds": times})
    derived = with_published_speedup(runs, "one")["published_speedup"].tolist()
    assert derived == pytest.approx([math.nan, 2090 / 1046, math.nan, 2090 / 887], nan_ok=True)
    known = with_published_speedup(runs.assign(published_speedup=told), "one")["published_speedup"].tolist()
    assert known == pytest.approx([math.nan, 2090 / 1046, math.nan, 2.5], nan_ok=True)
    for reference in ("ours", ""):
        assert "published_speedup" not in with_published_speedup(runs, reference)
    assert "published_speedup" not in with_published_speedup(runs.drop(columns="published_train_seconds"), "one")
