"""The answer in words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rampline.comparison.run_table import make_columns, make_run_rows
from rampline.comparison.runs import is_missing, read_comparison
from rampline.comparison.sentences import list_remarks, summarise_accuracy, summarise_scaling, summarise_speed
from rampline.record.attempts import COMMAND_KILLED

TIMES = "\N{MULTIPLICATION SIGN}"


def test_faster_run(compare, four_runs):
    comparison = compare("faster", four_runs, reference="baseline")
    fastest = f"mirrored is the fastest: 1,500 images/s, 1.50{TIMES} the reference baseline."
    assert summarise_speed(comparison) == fastest
    accuracy = "The test accuracy of mirrored is 0.9520, 1.2 points above the reference, and the best of all."
    assert summarise_accuracy(comparison) == accuracy
    scaling = f"Scaling paid: mirrored reaches 1.50{TIMES} on 2 replicas, 75 % of ideal scaling."
    assert summarise_scaling(comparison) == scaling
    assert list_remarks(comparison) == [
        "multi-worker did not finish (failed): worker 1 ended with exit status -9",
        "The replicas of mirrored are virtual devices that share one processor.",
    ]


def test_scaling_that_did_not_pay(compare, four_runs):
    slow = replace(four_runs[2], epochs=[(0.8, 10, 1e-3, 1), (0.9, 600, 1e-3, 2)])
    comparison = compare("slower", [four_runs[0], slow], reference="baseline")
    assert summarise_speed(comparison) == (
        f"The reference baseline is the fastest with 1,000 images/s: the next, mirrored, reaches 0.60{TIMES} of that."
    )
    assert summarise_accuracy(comparison) == "The best test accuracy is that of mirrored with 0.9520."
    scaling = f"Scaling did not pay: mirrored reaches 0.60{TIMES} on 2 replicas, 30 % of ideal scaling."
    assert summarise_scaling(comparison) == scaling


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"model.trainable": "head"}},
        {"params": {"global_batch_size": "256", "per_replica_batch_size": "128"}},
        {"engine": "fit"},
    ],
    ids=str,
)
def test_other_work_on_more_replicas_is_no_scaling(compare, four_runs, change):
    comparison = compare("other", [four_runs[0], replace(four_runs[2], **change)], reference="baseline")
    assert summarise_speed(comparison).startswith("mirrored is the fastest: 1,500 images/s")
    assert summarise_scaling(comparison) == ""


def test_differences_within_five_percent_are_no_difference(compare, four_runs):
    comparison = compare("equal", four_runs[:2], reference="baseline")
    assert summarise_speed(comparison) == (
        f"No run is clearly faster than the reference baseline (1,000 images/s): short is at 1.00{TIMES}."
    )
    assert summarise_scaling(comparison) == ""


def test_runs_that_are_as_fast_as_the_fastest_are_named(compare, four_runs):
    base, _, fast, _ = four_runs
    rates = {"equal": 1470, "slower": 1400}
    others = [replace(fast, name=name, epochs=[(0.8, 10, 1e-3, 1), (0.9, r, 1e-3, 2)]) for name, r in rates.items()]
    assert summarise_speed(compare("near", [base, fast, *others], reference="baseline")) == (
        f"mirrored is the fastest: 1,500 images/s, 1.50{TIMES} the reference baseline; equal is not clearly slower."
    )


def test_one_run(compare, four_runs):
    comparison = compare("one", four_runs[:1], reference="baseline")
    assert summarise_speed(comparison).startswith("baseline trains on 1,000 images/s; no other run has finished")
    assert summarise_accuracy(comparison) == "The test accuracy is that of baseline with 0.9400."
    assert list_remarks(comparison) == []


def test_a_run_that_still_trains_has_not_failed(compare, four_runs):
    comparison = compare("training", [four_runs[0], replace(four_runs[1], status="RUNNING")], reference="baseline")
    assert list_remarks(comparison) == ["short has not finished yet (running)"]


def test_a_run_that_was_started_again_is_said(client, compare, four_runs):
    comparison = compare("restarted", four_runs[:1], reference="baseline")
    client.set_tag(comparison.runs["run_id"].iloc[0], "rampline.attempts", "2")
    assert list_remarks(read_comparison(client, "restarted")) == [
        "baseline was started 2 times: what the lost attempt took is in its wall time."
    ]


def test_a_run_with_fewer_workers_is_said(client, compare, four_runs):
    run_id = compare("elastic", four_runs[:1], reference="baseline").runs["run_id"].iloc[0]
    client.set_tag(run_id, "rampline.workers", "3, 2, 3")
    assert list_remarks(read_comparison(client, "elastic")) == [
        "baseline had not all its workers all the time (3, 2, 3 in turn): its speed is of a mix."
    ]


def test_costs_at_the_price_of_a_named_machine_are_said_once(compare, client, log_study, four_runs):
    named = {"cluster.machine": "g4dn.xlarge", "cluster.machines": "1"}
    two = {"cluster.machine": "a2-highgpu-1g", "cluster.machines": "2"}
    runs = [
        replace(run, params={**run.params, **params}, metrics={**run.metrics, "cost_usd": 1.0})
        for run, params in zip([*four_runs[:2], four_runs[0]], (named, named, two), strict=True)
    ]
    sentence = "Costs are at the price of {}, wherever the runs ran."
    assert list_remarks(compare("priced", runs[:2], reference="baseline")) == [sentence.format("1 x g4dn.xlarge")]
    log_study("two-prices", [runs[0], replace(runs[2], name="more")], reference="baseline")
    assert sentence.format("1 x g4dn.xlarge and 2 x a2-highgpu-1g") in list_remarks(
        read_comparison(client, "two-prices")
    )
    unpriced = replace(four_runs[0], params={**four_runs[0].params, **named})
    assert list_remarks(compare("unpriced", [unpriced], reference="baseline")) == []


def test_a_run_that_stopped_is_said_and_that_accuracies_are_after_other_epochs(compare, four_runs):
    stopped = {"rampline.stopped": "after epoch 2 of 4: target accuracy 0.9 reached"}
    fast = replace(four_runs[2], epochs=four_runs[2].epochs[:2], params={}, tags=stopped)
    comparison = compare("decided", [four_runs[0], fast], reference="baseline")
    assert summarise_accuracy(comparison) == (
        "The test accuracy of mirrored is 0.9520, 1.2 points above the reference, after 2 epochs against 4, and the "
        "best of all."
    )
    remarks = list_remarks(comparison)
    assert remarks[0] == "mirrored stopped after epoch 2 of 4: target accuracy 0.9 reached."
    assert remarks[1].startswith(
        "Because runs were stopped, epochs differ: images/s are of equal work, accuracies, times"
    )
    assert len(remarks) == 2
    # Of equal work, and not.
    assert comparison.rows[1]["speedup"] == 1.5
    assert is_missing(comparison.rows[1]["train_seconds_vs_reference"])
    columns = make_columns(comparison)
    assert [column.text(row) for column in columns if column.key == "epochs" for row in comparison.rows] == ["4", "2"]
    (_, row) = make_run_rows(comparison, columns)
    assert "stopped after epoch 2 of 4: target accuracy 0.9 reached" in row.cells[0].notes
    alike = replace(four_runs[0], name="other", tags={"rampline.stopped": "after epoch 4 of 9: limit of $2 reached"})
    assert list_remarks(compare("decided-alike", [four_runs[0], alike], reference="baseline")) == [
        "other stopped after epoch 4 of 9: limit of $2 reached."
    ]


def test_images_per_second_of_one_epoch_are_no_speed(compare, four_runs):
    short = [replace(run, epochs=run.epochs[:1], params={}) for run in (four_runs[0], four_runs[2])]
    assert list_remarks(compare("one-epoch", short, reference="baseline")) == [
        "baseline and mirrored trained one epoch: images/s include the tracing of the graph and say little of speed."
    ]


def test_nothing_finished(compare, four_runs):
    comparison = compare("nothing-finished", four_runs[3:], reference="baseline")
    assert summarise_speed(comparison) == "No run has finished, so there is nothing to compare yet."
    assert summarise_accuracy(comparison) == summarise_scaling(comparison) == ""


def test_another_reference_is_said(compare, client, log_study, four_runs):
    assert list_remarks(compare("left-out", four_runs[1:3], reference="baseline"))[0] == (
        "The study's reference baseline is not part of this execution: speed-up is measured against short instead."
    )
    log_study("broken", [replace(four_runs[0], status="KILLED"), four_runs[1]], reference="baseline")
    assert list_remarks(read_comparison(client, "broken"))[0].startswith("The study's reference baseline did not fin")


def test_a_run_that_starts_from_another_is_told_with_the_time_of_both(compare, four_runs):
    weights = {"model.weights": "/home/runs/tuned/first/baseline/checkpoints/step-00000008"}
    comparison = compare("tuned", [four_runs[0], replace(four_runs[2], params=weights)], reference="baseline")
    assert "mirrored starts from the weights of baseline: with that training it takes 19.0 s in all." in list_remarks(
        comparison
    )
    row = comparison.rows[1]
    assert (row["train_seconds_in_all"], row["wall_seconds_in_all"]) == (9, 19)
    # 4 epochs after 4 others are not the reference's 4.
    assert is_missing(row["train_seconds_vs_reference"])
    columns = make_columns(comparison)
    (_, mirrored) = make_run_rows(comparison, columns)
    notes = {cell.column.key: cell.notes for cell in mirrored.cells}
    assert "9.00 in all" in notes["train_seconds"]
    assert "19.0 in all" in notes["wall_seconds"]


def test_what_a_killed_command_did_is_not_in_the_wall_time(compare, four_runs):
    table = [["1", "a", "0 to 20", COMMAND_KILLED], ["2", "a", "20 to 40", "complete"]]
    tags = {"rampline.attempts": "2", "rampline.attempt_table": json.dumps(table)}
    assert list_remarks(compare("killed", [replace(four_runs[0], tags=tags)], reference="baseline")) == [
        "baseline was started 2 times: what the lost attempt took is in its wall time. "
        "What its killed command did after the last checkpoint is not."
    ]


def test_another_training_on_more_replicas_is_no_scaling(compare, four_runs):
    smaller = replace(four_runs[2], params={**four_runs[2].params, "data.image_size": "16"})
    assert summarise_scaling(compare("smaller", [four_runs[0], smaller], reference="baseline")) == ""
