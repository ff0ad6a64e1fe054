"""Runs that were trained several times: medians, intervals, and what is said only where these part."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pandas as pd
import pytest
from logged_runs import LoggedRun

from rampline.comparison.charts_section import make_charts
from rampline.comparison.errors_section import read_scores
from rampline.comparison.recommendation import have_same_answers, recommend
from rampline.comparison.report import make_attempts_section, write_comparison
from rampline.comparison.run_table import make_columns
from rampline.comparison.runs import is_missing, read_comparison
from rampline.comparison.sentences import (
    find_fastest,
    list_remarks,
    summarise_scaling,
    summarise_speed,
    tell_repeats,
)
from rampline.comparison.summary import derived_metrics, summarise, write_markdown

TIMES = "\N{MULTIPLICATION SIGN}"


def trainings(
    name: str, speeds: list[float], accuracies: list[float], failed: int = 0, **settings: str
) -> list[LoggedRun]:
    """A run with a training for each speed; the last `failed` ones did not finish."""
    made = []
    for number, (speed, accuracy) in enumerate(zip(speeds, accuracies, strict=True)):
        metrics = {"test_accuracy": accuracy, "test_examples": 10_000, "wall_seconds": 1e5 / speed}
        made.append(
            LoggedRun(
                name=f"{name}-seed{number}" if number else name,
                epochs=[(accuracy, speed, 1e-3, 1), (accuracy, speed, 1e-3, 2)],
                metrics=metrics | {"train_seconds": 9e4 / speed},
                params={"seed": str(number), "run.of": name} | settings,
                tags={"rampline.repeat_of": name} if number else {},
                status="FAILED" if number >= len(speeds) - failed else "FINISHED",
            )
        )
    return made


@pytest.fixture
def compare(compare):
    def read(study, *runs):
        logged = [training for run in runs for training in run]
        return compare(study, logged, reference=logged[0].name)

    return read


def test_a_run_is_one_row_of_medians(compare):
    found = compare("medians", trainings("one", [100, 130, 110], [0.9, 0.91, 0.92]), trainings("two", [300], [0.9]))
    one, two = found.rows
    assert (one["run"], one["images_per_second"], one["test_accuracy"]) == ("one", 110, 0.91)
    assert (one["trained"], one["trainings"], two["trained"]) == (3, 3, 1)
    assert one["intervals"]["images_per_second"] == (100, 130)
    assert "speedup" not in one["intervals"]
    assert two["speedup"] == pytest.approx(300 / 110)
    assert two["intervals"]["speedup"] == pytest.approx((300 / 130, 300 / 100))
    assert found.epochs_of("one")["images_per_second"].tolist() == [110, 110]
    (column,) = [column for column in make_columns(found) if column.key == "test_accuracy"]
    assert column.text(one) == "0.9100 (0.9000 to 0.9200)"
    assert column.text(two) == "0.9000"


def test_files_and_mlflow_have_the_bounds(compare):
    found = compare("bounds", trainings("one", [100, 130, 110], [0.9, 0.91, 0.92]), trainings("two", [300], [0.9]))
    table = found.csv_table.set_index("run")
    assert table.loc["one", ["repeats", "test_accuracy_low", "test_accuracy_high"]].tolist() == [3, 0.9, 0.92]
    assert math.isnan(table["test_accuracy_low"]["two"])
    metrics = summarise(found, (), 0.0).moments[0].figures
    assert metrics["images_per_second/one"] == 110
    assert (metrics["images_per_second_low/one"], metrics["images_per_second_high/one"]) == (100, 130)
    # Each training has its own, against the median of the reference.
    speedups = sorted(figures["speedup"] for figures in derived_metrics(found).values())
    assert speedups == pytest.approx([100 / 110, 1, 130 / 110, 300 / 110])


def test_speed_is_told_where_intervals_part(compare):
    slow, fast = trainings("one", [100, 101, 101, 102], [0.9] * 4), trainings("two", [103, 104, 104, 105], [0.9] * 4)
    apart = compare("apart", slow, fast)
    assert summarise_speed(apart).startswith(f"two is the fastest: 104 images/s, 1.03{TIMES} (1.01{TIMES} to 1.05")
    # Of three trainings each, one time in ten all of one are above all of the other.
    assert summarise_speed(compare("few", slow[:3], fast[:3])).startswith("No run is clearly faster")
    mixed = compare("mixed", trainings("one", [100, 150, 110], [0.9] * 3), trainings("two", [140, 160, 170], [0.9] * 3))
    assert summarise_speed(mixed).startswith("No run is clearly faster")
    assert recommend(mixed).fastest == "one"


def test_scaling_pays_where_intervals_part(compare):
    both = trainings("one", [100, 150, 110], [0.9] * 3, replicas="1")
    found = compare("scaling", both, trainings("two", [140, 160, 170], [0.9] * 3, replicas="2"))
    assert summarise_scaling(found).startswith("Scaling did not pay")


def test_a_run_that_varies_does_not_hide_one_that_is_clearly_faster(compare):
    base = trainings("base", [970, 990, 1000, 1010, 1030], [0.9] * 5, replicas="1")
    wide = trainings("wide", [900, 1000, 1140, 1200, 1300], [0.9] * 5, replicas="2")
    sure = trainings("sure", [1090, 1100, 1110, 1120, 1130], [0.9] * 5, replicas="2")
    found = compare("hidden", base, wide, sure)
    assert summarise_speed(found).startswith("sure is the fastest: 1,110 images/s")
    assert summarise_speed(found).endswith("; wide is not clearly slower.")
    assert summarise_scaling(found).startswith("Scaling paid: sure reaches 1.11")
    assert (recommend(found).fastest, find_fastest(found)["run"]) == ("sure", "sure")


def test_runs_of_the_same_settings_share_an_interval(compare):
    one, twin, other = (trainings(name, [speed], [0.9]) for name, speed in (("a", 100), ("b", 120), ("c", 118)))
    twins = [[LoggedRun(**{**vars(run[0]), "params": {"seed": "0", "x": x}})] for run, x in ((one, "1"), (twin, "1"))]
    found = compare("twins", *twins, other)
    a, b, c = found.rows
    assert a["intervals"]["images_per_second"] == b["intervals"]["images_per_second"] == (100, 120)
    # The accuracy of one seed is one figure.
    assert "test_accuracy" not in a["intervals"]
    assert c["intervals"].keys() == {"speedup"}
    assert summarise_speed(found).startswith("No run is clearly faster than the reference a")


def test_runs_that_differ_in_the_seed_alone_are_told_to_share_an_interval(compare):
    runs = [trainings(f"seed-{seed}", [100 + seed], [0.9], x="1") for seed in (0, 10)]
    grid = [[replace(t, params={**t.params, "run.of": "grid", "seed": t.name}) for t in run] for run in runs]
    found = compare("seeds-of-a-grid", *grid)
    assert found.has_repeats
    assert tell_repeats(found) == (
        "Each run was trained once: differences of speed and time below 5 % count as noise, and runs that differ in "
        "the seed alone share an interval."
    )
    assert found.csv_table["images_per_second_high"].tolist() == [110, 110]


def test_a_shared_interval_is_of_finished_trainings_and_holds_the_figure_of_each(compare):
    runs = [trainings(f"seed-{seed}", [100 + seed], [0.9], failed=seed == 9, x="1") for seed in range(10)]
    grid = [[replace(t, params={**t.params, "run.of": "grid", "seed": t.name}) for t in run] for run in runs]
    found = [row["intervals"].get("images_per_second") for row in compare("many-seeds", *grid).rows]
    assert found == [(100, 107), *[(101, 107)] * 7, (101, 108), None]


def test_failed_trainings_are_left_out_and_told(compare):
    found = compare("failed", trainings("one", [100, 130, 500], [0.9, 0.91, 0.5], failed=1))
    (one,) = found.rows
    assert (one["status"], one["images_per_second"]) == ("FINISHED", 115)
    assert found.epochs_of("one")["images_per_second"].tolist() == [115, 115]
    assert list_remarks(found) == ["one: 2 of its 3 trainings have finished."]
    told = "Each run was trained 3 times, each time with another seed: figures are medians with their intervals."
    assert tell_repeats(found) == told


def test_what_happened_to_each_training_is_told(compare):
    run = trainings("one", [100, 130, 110], [0.9] * 3)
    attempts = [["1", "a, b", "0 → 20", "worker 1 on b was lost"], ["2", "a", "20 → 30", "complete"]]
    tags = {"rampline.attempts": "2", "rampline.workers": "2, 1", "rampline.attempt_table": json.dumps(attempts)}
    # That of another training has the speed in the middle.
    run[1] = replace(run[1], tags={**run[1].tags, **tags})
    found = compare("attempts", run)
    assert list_remarks(found) == [
        "one-seed1 was started 2 times: what the lost attempt took is in its wall time.",
        "one-seed1 had not all its workers all the time (2, 1 in turn): its speed is of a mix.",
    ]
    section = make_attempts_section(found)
    assert section is not None
    assert section.tables[0].rows == tuple(("one-seed1", *cells) for cells in attempts)


def test_another_seed_widens_the_interval_of_accuracy(compare):
    sure = compare("sure", trainings("one", [100], [0.9]), trainings("two", [300], [0.899]))
    seeds = compare(
        "seeds", trainings("one", [100] * 3, [0.88, 0.9, 0.92]), trainings("two", [300] * 3, [0.87, 0.899, 0.92])
    )
    one, several = (next(c for c in recommend(found).candidates if c.run == "two") for found in (sure, seeds))
    assert one.interval is not None
    assert several.interval is not None
    assert several.interval[0] < one.interval[0] - 0.02


def test_the_interval_holds_what_images_and_seeds_change_together(compare):
    # Half of Welch's interval over the seeds is 1.41 points, of Newcombe's over the images 0.81.
    one, two = [0.90, 0.91, 0.92, 0.91], [0.89, 0.90, 0.91, 0.90]
    found = compare("both", trainings("one", [100] * 4, one), trainings("two", [300] * 4, two))
    interval = next(c.interval for c in recommend(found).candidates if c.run == "two")
    assert interval == pytest.approx((-0.01 - math.hypot(0.0141, 0.0081), -0.01 + math.hypot(0.0141, 0.0081)), abs=2e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("accuracies", [[0.9, 0.9, 0.9], [0.89, 0.9, 0.91]])
def test_seeds_that_all_lead_to_one_accuracy_have_an_interval_and_no_warning(compare, accuracies):
    found = compare(
        f"equal-{accuracies[0]}", trainings("one", [100] * 3, [0.91] * 3), trainings("two", [90] * 3, accuracies)
    )
    (two,) = [c for c in recommend(found).candidates if c.run == "two"]
    assert two.interval is not None
    assert two.interval[0] < two.difference < two.interval[1]


def test_nothing_changes_without_repeats(compare):
    found = compare("single", trainings("one", [100], [0.9]), trainings("two", [103], [0.9]))
    pd.testing.assert_frame_equal(found.runs[found.trainings.columns], found.trainings)
    assert not found.has_repeats
    assert summarise_speed(found).startswith("No run is clearly faster")
    assert tell_repeats(found) == "Each run was trained once: differences of speed and time below 5 % count as noise."


def test_curves_of_repeats_are_medians_with_the_range_of_their_trainings(compare):
    found = compare(
        "curves",
        trainings("spread", [100, 130, 110], [0.9, 0.92, 0.91]),
        trainings("equal", [300, 300], [0.8, 0.8]),
        trainings("once", [200], [0.7]),
    )
    chart = next(chart for chart in make_charts(found) if chart.title == "Validation accuracy")
    rows = {row["run"]: row for row in chart.spec["data"]["values"]}
    assert (rows["spread"]["val_accuracy"], rows["spread"]["low"], rows["spread"]["high"]) == (0.91, 0.9, 0.92)
    assert "low" not in rows["equal"]
    assert "low" not in rows["once"]
    assert chart.spec["layer"][0]["mark"]["type"] == "area"
    assert "areas go from the least to the greatest" in chart.caption


def test_curves_without_repeats_have_no_areas(compare):
    for chart in make_charts(compare("no-areas", trainings("one", [100], [0.9]), trainings("two", [200], [0.8]))):
        assert all(layer["mark"]["type"] != "area" for layer in chart.spec["layer"])


def test_other_micro_batches_are_another_set_up(compare):
    slow, fast = (
        trainings(n, [s], [0.9], 0, **{"batch.accumulate": a}) for n, s, a in (("a", 100, "8"), ("b", 300, "1"))
    )
    same = [[LoggedRun(**{**vars(r), "params": {**r.params, "run.of": "x"}}) for r in run] for run in (slow, fast)]
    found = compare("accumulated", *same)
    assert summarise_speed(found).startswith("b is the fastest: 300 images/s")
    assert recommend(found).fastest == "b"


def test_speed_and_time_are_of_the_trainings_on_one_machine_and_accuracy_is_of_all(compare):
    run = trainings("a", [100, 1000, 110], [0.90, 0.92, 0.94])
    machines = ("alpha", "beta", "alpha")
    run = [
        replace(training, tags={**training.tags, "rampline.machines": json.dumps([[1, machine]])})
        for training, machine in zip(run, machines, strict=True)
    ]
    run = [
        replace(t, epochs=[(*epoch[:3], seconds) for epoch in t.epochs], curves={"val_auc": [0.0, seconds / 100]})
        for t, seconds in zip(run, (1, 100, 3), strict=True)
    ]
    found = compare("moved", run)
    (row,) = found.rows
    assert (row["images_per_second"], row["wall_seconds"]) == (105, pytest.approx((1000 + 1e5 / 110) / 2))
    assert row["intervals"]["images_per_second"] == (100, 110)
    assert found.epochs_of("a")["images_per_second"].tolist() == [105, 105]
    assert found.epochs_of("a")["elapsed_seconds"].tolist() == [2, 2]
    assert row["val_auc"] == 0.03
    assert (row["test_accuracy"], row["intervals"]["test_accuracy"]) == (0.92, (0.90, 0.94))
    told = "a-seed1 was trained on beta, not on alpha: it counts for the accuracy of a alone."
    assert told in list_remarks(found)
    assert told not in list_remarks(compare("moved-and-failed", [run[0], replace(run[1], status="FAILED"), run[2]]))


def test_answers_are_the_same_where_those_of_all_seeds_are(compare):
    both = trainings("a", [100, 90, 110], [0.96, 0.97, 0.98]), trainings("b", [100], [0.96])
    told = [[replace(t, tags={**t.tags, "rampline.answers": f"x{t.params['seed']}"}) for t in run] for run in both]
    other = next(c for c in recommend(compare("answers", *told)).candidates if c.run == "b")
    assert other.difference == pytest.approx(-0.01)
    assert other.interval != (0, 0)
    again = [
        replace(
            t, name=f"x-{t.name}", tags={n: f"x-{v}" if n == "rampline.repeat_of" else v for n, v in t.tags.items()}
        )
        for t in told[0]
    ]
    # Another seed than that of the reference has the speed in the middle: it is the same set-up for all that.
    again[1] = replace(again[1], epochs=[(0.97, 105, 1e-3, epoch) for epoch in (1, 2)])
    same = compare("same", told[0], again)
    assert have_same_answers(*same.rows)
    assert find_fastest(same)["run"] == "a"


def answered(client, compare, study, *runs):
    """The comparison of runs whose trainings have answered 100 images of one class, as accurately as they are."""
    told = [[replace(t, tags={**t.tags, "rampline.answers": t.name}) for t in run] for run in runs]
    for row in compare(study, *told).trainings.to_dict("records"):
        right = round(100 * row["test_accuracy"])
        lines = [f"{index},1,{int(index < right)}" for index in range(100)]
        client.log_text(row["run_id"], "\n".join(["index,label,prediction", *lines]), "predictions.csv")
        scores = {"class_names": ["no", "yes"], "confusion_matrix": [[0, 0], [100 - right, right]]}
        client.log_dict(row["run_id"], scores, "evaluation.json")
    return read_comparison(client, study)


def test_the_interval_is_round_the_difference_of_the_medians(compare, client):
    # The other training of the most accurate run was lost, so no interval over the seeds is wider.
    runs = trainings("a", [100, 90], [0.80, 0.99]), trainings("b", [100, 90], [0.97, 0.5], failed=1)
    (one, _) = recommend(answered(client, compare, "even", *runs)).candidates
    assert one.interval is not None
    assert one.interval[0] < one.difference < one.interval[1]


def test_answers_scores_and_ids_are_of_the_training_with_the_median_accuracy_whatever_its_speed(
    compare, client, tmp_path
):
    # By speed, the one of 0.96 and the one of 0.90 are in the middle.
    runs = trainings("a", [100, 90, 110], [0.96, 0.97, 0.98]), trainings("b", [50, 40, 60], [0.90, 0.95, 0.94])
    found = answered(client, compare, "answered", *runs)
    assert {run: answers.predicted.sum() for run, answers in found.answers.items()} == {"a": 97, "b": 94}
    assert {each.run: each.matrix[1, 1] for each in read_scores(client, found)} == {"a": 97}
    assert found.rows[1]["images_per_second"] == 50
    write_comparison(found, tmp_path)
    ids = found.trainings.set_index("run")["run_id"][["a-seed1", "b-seed2"]].tolist()
    assert pd.read_csv(tmp_path / "comparison.csv")["run_id"].tolist() == ids
    assert [id_ for id_ in found.trainings["run_id"] if f"/runs/{id_}?" in write_markdown(found)] == ids


def test_curves_end_with_the_first_training_that_stops_and_figures_are_of_all(compare):
    run = trainings("a", [100, 90, 95], [0.9] * 3)
    reason = "after epoch 2 of 3: target accuracy 0.97 reached"
    for number, accuracies in enumerate([(0.95, 0.97), (0.94, 0.98), (0.8, 0.85, 0.9)]):
        epochs = [(accuracy, 100 - number, 1e-3, epoch) for epoch, accuracy in enumerate(accuracies, 1)]
        tags = {"rampline.stopped": reason} if len(epochs) == 2 else {}
        run[number] = replace(run[number], epochs=epochs, tags={**run[number].tags, **tags})
    # The training that was not stopped is the one in the middle.
    run[2] = replace(run[2], epochs=[(accuracy, 99.5, *rest) for accuracy, _, *rest in run[2].epochs])
    found = compare("ends", run)
    (row,) = found.rows
    assert (row["epochs"], row["stopped"]) == (2, reason)
    assert is_missing(row["best_epoch"])
    assert found.epochs_of("a")["reached_val_accuracy"].tolist() == [0.94, 0.97]


def test_times_of_trainings_that_stopped_after_other_epochs_are_not_held_to_each_other(compare):
    stopped, whole = trainings("a", [100, 90, 110], [0.96, 0.97, 0.98]), trainings("b", [50], [0.96])
    stopped[1] = replace(
        stopped[1], epochs=stopped[1].epochs[:1], tags={**stopped[1].tags, "rampline.stopped": "after epoch 1"}
    )
    found = compare("stopped", whole, stopped)
    assert math.isnan(found.rows[1]["train_seconds_vs_reference"])
    assert found.rows[1]["speedup"] == 2
