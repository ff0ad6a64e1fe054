"""The section on where the time went, and where each lost part of a speed-up went."""

from __future__ import annotations

from dataclasses import replace

import pytest
from logged_runs import LoggedRun, there

from rampline.comparison.charts import MOST_STYLES
from rampline.comparison.explanation_section import describe_loss, find_losses, make_explanation_section
from rampline.comparison.runs import read_comparison

TIMES = "\N{MULTIPLICATION SIGN}"


PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


STEP = {"input": 2.0, "compute": 10.0, "contention": 4.0, "sync": 3.5, "other": 0.5}


RUN = {"startup": 6, "tracing": 2, "steps": 20, "evaluation": 4, "checkpoint": 1, "logging": 0.5, "unexplained": -1.5}


SINGLE = {"input": 1.0, "compute": 23.0, "contention": 0.0, "sync": 0.0, "other": 0.0}


FOUR = {"input": 1.0, "compute": 9.0, "contention": 6.0, "sync": 8.0, "other": 0.0}


def run(
    name: str, replicas: int, step: dict[str, float], seconds: dict[str, float], verdict: str, slowdown: float = 1.0
) -> LoggedRun:
    metrics = {f"step_ms_{part}": value for part, value in step.items()}
    metrics |= {f"{part}_seconds": value for part, value in seconds.items()} | {"probe_slowdown": slowdown}
    return LoggedRun(
        name=name,
        replicas=replicas,
        epochs=[(0.9, 100, 1e-3, 1)],
        metrics=metrics,
        tags={"rampline.verdict": verdict, "rampline.bound": verdict.partition("-")[0]} if verdict else {},
    )


RUNS = [
    run("one", 1, SINGLE, {"steps": 30.0}, "compute-bound: all of it"),
    run("two", 2, STEP, RUN, "compute-bound: half of it"),
    run("not-probed", 2, {}, {}, ""),
    run("four", 4, FOUR, {}, "compute-bound: most of it"),
]


def test_verdicts_parts_and_the_lost_speedup(compare):
    section = there(make_explanation_section(compare("explained", RUNS, reference="one")))
    assert (section.id, section.title) == ("explanation", "Where the time went")
    # Of the two scaled runs, the faster one: 1.2 times the speed of 24 ms, 4 replicas reach 1.0.
    assert len(section.sentences) == 1
    assert section.sentences[0].startswith(f"two: 1.20{TIMES} instead of the ideal 2.00{TIMES}. A step takes 20.0 ms")
    verdicts, steps, losses, whole = section.tables
    assert verdicts.rows[:2] == (("one", "compute-bound: all of it"), ("two", "compute-bound: half of it"))
    assert steps.head == ("run", "input", "compute", "contention", "sync", "fixed cost", "total")
    assert steps.rows[:2] == (
        ("one", "1.0 (4 %)", "23.0 (96 %)", "0.00 (0 %)", "0.00 (0 %)", "0.00 (0 %)", "24.0"),
        ("two", "2.0 (10 %)", "10.0 (50 %)", "4.0 (20 %)", "3.5 (18 %)", "0.50 (2 %)", "20.0"),
    )
    # An ideal step of two has 0.5 ms of input and 11.5 of compute.
    assert losses.rows == (
        ("two", f"1.20{TIMES}", f"2.00{TIMES}", "20.0", "12.0", "1.5", "-1.5", "4.0", "3.5", "0.50"),
        ("four", f"1.00{TIMES}", f"4.00{TIMES}", "24.0", "6.0", "0.75", "3.2", "6.0", "8.0", "0.00"),
    )
    assert whole.head[1:] == (
        *("start-up", "tracing", "steps", "evaluation", "checkpoints", "logging", "unexplained"),
        "total",
    )
    # 32 s in all, of which the probes' steps explain 1.5 more than there were.
    assert whole.rows[1] == (
        *("two", "6.0 (19 %)", "2.0 (6 %)", "20.0 (62 %)", "4.0 (12 %)", "1.0 (3 %)", "0.50 (2 %)", "-1.5 (-5 %)"),
        "32.0",
    )
    assert whole.rows[0][3] == "30.0 (100 %)"


def test_the_charts_have_the_runs_that_were_probed(compare):
    section = there(make_explanation_section(compare("charts", RUNS, reference="one")))
    assert [chart.title for chart in section.charts] == ["One training step", "The whole run"]
    for chart, total in zip(section.charts, ("20.0", "32.0"), strict=True):
        totals = {row["run"]: row["text"] for row in chart.spec["layer"][1]["data"]["values"]}
        assert "not-probed" not in totals
        assert total in totals.values()
    # What no run has is not in the legend: nobody's part is above 0 there.
    assert "unexplained" not in [words for words, _ in section.charts[1].legend]


def test_where_no_run_that_is_drawn_was_probed_there_are_tables_alone(compare):
    crowd = [run(f"fast-{n}", 1, {}, {}, "") for n in range(MOST_STYLES)]
    last = replace(RUNS[0], epochs=[(0.5, 1, 1e-3, 1)])
    section = there(make_explanation_section(compare("crowd", [*crowd, last], reference="fast-0")))
    assert section.charts == ()
    assert section.tables[1].rows[0][0] == "one"


def test_probes_on_a_machine_that_was_busier_or_idler_are_told(compare):
    runs = [run(f"at-{slowdown}", 1, SINGLE, {}, "", slowdown) for slowdown in (1.14, 0.88, 1.5, 0.5)]
    runs.append(replace(runs[2], name="elastic", tags={"rampline.workers": "2, 1, 2"}))
    section = there(make_explanation_section(compare("drifted", runs, reference="at-1.14")))
    proportions = "Its parts are in the proportions of the probes."
    slow = f"its steps took 1.50{TIMES} the time of its probes"
    assert section.sentences == (
        f"at-1.5: {slow}, so the machine was busier while it trained. {proportions}",
        f"at-0.5: {slow.replace('1.5', '0.5')}, so the machine was idler while it trained. {proportions}",
        f"elastic: {slow}, but it had not all its workers all the time. {proportions}",
    )


def test_a_part_that_is_not_told_apart_from_noise_has_its_size_and_no_share(compare):
    noisy = replace(RUNS[1], metrics={**RUNS[1].metrics, "step_ms_sync_noise": 4.0, "step_ms_other_noise": 0.75})
    section = there(make_explanation_section(compare("noisy", [RUNS[0], noisy, RUNS[3]], reference="one")))
    _, steps, _, whole = section.tables
    assert steps.rows[1][3:] == ("4.0 (20 %)", f"3.5 {PLUS_MINUS}4.0", f"0.50 {PLUS_MINUS}0.75", "20.0")
    assert steps.rows[2][4] == "8.0 (33 %)"
    assert steps.note.startswith(f"{PLUS_MINUS} is half of the interval that the median")
    assert whole.note == ""
    # The sync's 3.5 ms are no loss that was shown.
    assert section.sentences[0].endswith(
        "it loses 4.0 ms to replicas sharing the hardware, 1.5 ms to the input pipeline."
    )


def test_one_replica_alone_has_no_losses(compare):
    section = there(make_explanation_section(compare("alone", RUNS[:1], reference="one")))
    assert section.sentences == ()
    assert [table.title for table in section.tables] == [
        "What holds each run back",
        "One training step, milliseconds",
        "The whole run, seconds",
    ]


def test_there_is_no_section_where_no_run_was_probed(compare):
    assert make_explanation_section(compare("unprobed", RUNS[2:3], reference="not-probed")) is None


def probed(name: str, replicas: int, *, batch: int = 64, status: str = "FINISHED", **milliseconds: float) -> LoggedRun:
    """With the parts of its step, or without probes; parts that are not given are 0."""
    parts = dict.fromkeys(("input", "compute", "contention", "sync", "other"), 0.0) | milliseconds
    return LoggedRun(
        name=name,
        replicas=replicas,
        strategy="mirrored" if replicas > 1 else "single",
        status=status,
        epochs=[(0.9, 100, 1e-3, 1)],
        metrics={f"step_ms_{part}": value for part, value in parts.items()} if milliseconds else {},
        params={"global_batch_size": str(batch), "per_replica_batch_size": str(batch // replicas)},
    )


ONE = probed("one", 1, input=2, compute=20, other=2)


TWO = probed("two", 2, input=2, compute=10.5, contention=3, sync=2, other=2)


def test_the_parts_of_the_loss_add_up(compare):
    (loss,) = find_losses(compare("loss", [ONE, TWO], reference="one"))
    assert (loss.run, loss.ideal_speedup, loss.ideal_ms, loss.step_ms) == ("two", 2, 12, 19.5)
    assert loss.speedup == pytest.approx(24 / 19.5)
    # 10 of the 10.5 ms of compute, and 1 of the 2 of each the input and the fixed cost, are there in an ideal step too.
    assert loss.parts == {"contention": 3, "sync": 2, "other": 1, "input": 1, "compute": 0.5}
    assert sum(loss.parts.values()) == loss.step_ms - loss.ideal_ms
    assert describe_loss(loss) == (
        f"two: 1.23{TIMES} instead of the ideal 2.00{TIMES}. A step takes 19.5 ms where ideal scaling takes 12.0 ms; "
        "it loses 3.0 ms to replicas sharing the hardware, 2.0 ms to keeping the replicas in step, "
        "1.0 ms to fixed cost that more replicas do not share out, 1.0 ms to the input pipeline, "
        "0.50 ms to less efficient smaller batches."
    )


def test_with_the_same_batch_per_replica_the_ideal_step_is_the_references(compare):
    weak = probed("weak", 4, batch=256, input=2, compute=20, contention=8, sync=6, other=2)
    (loss,) = find_losses(compare("weak", [ONE, weak], reference="one"))
    assert (loss.ideal_ms, loss.step_ms, loss.ideal_speedup) == (24, 38, 4)
    # 4 times the images in 38 ms instead of 24.
    assert loss.speedup == pytest.approx(4 * 24 / 38)
    assert loss.parts == {"contention": 8, "sync": 6, "other": 0, "input": 0, "compute": 0}


def test_a_part_that_the_run_does_better_is_not_named_as_lost(compare):
    # 3 ms less of input than an ideal step would have, 0.2 ms more of sync: below 3 % of the loss of 7.2 ms.
    better = probed("better", 2, compute=10, sync=0.2, contention=11)
    (loss,) = find_losses(compare("better", [probed("one", 1, input=6, compute=20, other=2), better], reference="one"))
    assert loss.parts == pytest.approx({"contention": 11, "sync": 0.2, "other": -1, "input": -3, "compute": 0})
    assert sum(loss.parts.values()) == pytest.approx(21.2 - 14)
    # It loses no more than that in all.
    assert describe_loss(loss).endswith("it loses 7.2 ms to replicas sharing the hardware.")


def test_no_part_is_told_to_lose_more_than_the_step_loses(compare):
    one = probed("one", 1, compute=2000, other=75)
    five = probed("five", 5, batch=65, compute=518, other=75, input=179, contention=2835, sync=-1615)
    (loss,) = find_losses(compare("too-much", [replace(one, params={**one.params, "global_batch_size": "65"}), five]))
    assert (loss.step_ms, loss.ideal_ms, loss.parts["contention"]) == (1992, 415, 2835)
    assert "it loses 1,577 ms to replicas sharing the hardware, 179 ms to the input pipeline" in describe_loss(loss)


@pytest.mark.parametrize("compute, reached", [(12.3, "1.95"), (11, "2.18")])
def test_what_is_lost_within_the_noise_is_not_told(client, log_study, compute, reached):
    study = f"ideal-{compute}"
    log_study(study, [probed("one", 1, compute=24), probed("two", 2, compute=compute)], reference="one")
    (loss,) = find_losses(read_comparison(client, study))
    assert describe_loss(loss) == f"two: {reached}{TIMES} where the ideal is 2.00{TIMES}. It scales ideally."


def test_the_reference_may_have_several_replicas(compare):
    (loss,) = find_losses(compare("from-two", [ONE, TWO, probed("four", 4, compute=6, sync=6)], reference="two"))
    assert (loss.run, loss.ideal_speedup, loss.ideal_ms) == ("four", 2, 9.75)
    assert loss.speedup == pytest.approx(19.5 / 12)


@pytest.mark.parametrize(
    "study, runs",
    [
        ("no-scaled-run", [ONE, probed("again", 1, compute=30)]),
        ("reference-not-probed", [probed("one", 1), TWO]),
        ("none-probed", [probed("one", 1), probed("two", 2)]),
        ("failed", [ONE, probed("two", 2, status="FAILED", compute=20)]),
    ],
)
def test_nothing_is_said_of_what_is_not_known(compare, study, runs):
    assert list(find_losses(compare(study, runs, reference="one"))) == []
