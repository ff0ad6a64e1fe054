"""What the report begins with."""

from __future__ import annotations

from dataclasses import replace

from rampline.comparison.first_screen import list_certificates, make_first_screen
from rampline.comparison.runs import read_comparison
from rampline.data.quality import ReportRow, make_report


def checked(run, status: str, **figures: float):
    metrics = {**run.metrics, **{f"parity_{name}": value for name, value in figures.items()}}
    return replace(run, metrics=metrics, tags={**run.tags, "rampline.parity": status})


def test_it_answers_and_warns(client, log_study, four_runs):
    baseline, short, mirrored, failed = four_runs
    runs = [
        checked(baseline, "not_applicable"),
        short,
        checked(mirrored, "fail", max_loss_diff=0.25, max_weight_diff=0.5),
        checked(failed, "not_applicable", mean_staleness=1.25, max_staleness=3),
    ]
    log_study("screen", runs, reference="baseline")
    rows = [ReportRow(split, "cat", 0, f"{split}/1.png", "aa", 8, 9, "", "patient 7") for split in ("train", "test")]
    report = make_report(rows, source="folder:pets", fingerprint="f" * 64)
    screen = make_first_screen(read_comparison(client, "screen"), [report])
    assert screen.headline.startswith("mirrored is the fastest: 1,500 images/s")
    assert screen.notes[0].startswith("Scaling paid")
    assert screen.answers["What does it cost?"] == (
        "From start to end the reference baseline takes 9.00 s, mirrored takes 10.0 s and costs $0.0200.",
    )
    assert screen.answers["Which run to take?"] == (
        "No other run comes within 1 point of the best test accuracy (mirrored, 0.9520): mirrored takes 10.0 s, "
        "$0.0200.",
    )
    assert screen.answers["Is it the same model?"][0].startswith("The test accuracy of mirrored is 0.9520")
    failure = "losses differ by up to 0.2, weights by up to 0.5"
    assert [(c.runs, c.result) for c in screen.certificates] == [
        ("baseline", "not applicable: one replica"),
        ("short", "not checked"),
        ("mirrored", f"failed: {failure}"),
        ("multi-worker", "not applicable: updates are 1.2 steps stale on average, 3 at most"),
    ]
    assert screen.warnings == (
        "folder:pets: 1 image is in more than one split, a leak: test/1.png and train/1.png; accuracy on such images "
        "is no accuracy on new ones.",
        "folder:pets: 1 group is in more than one split, a leak: patient 7; accuracy on such images is no accuracy "
        "on new ones.",
        "multi-worker did not finish (failed): worker 1 ended with exit status -9",
        f"mirrored does not train what one replica would: {failure}.",
        "The replicas of mirrored are virtual devices that share one processor.",
        "Each run was trained once: differences of speed and time below 5 % count as noise.",
    )


def test_many_runs_share_certificates(compare, four_runs):
    runs = [
        checked(replace(four_runs[2], name=f"run-{n}"), "pass", max_loss_diff=n * 1e-17, max_weight_diff=2e-16)
        for n in range(11)
    ]
    failed, passed = list_certificates(compare("many", [*runs, checked(replace(four_runs[2], name="bad"), "fail")]))
    assert (failed.runs, failed.result) == ("bad", "failed")
    assert passed.runs.endswith("run-7 and 3 more")
    assert passed.result == "passed: losses differ by up to 1e\N{MINUS SIGN}16, weights by up to 2e\N{MINUS SIGN}16"


def test_the_worst_of_several_trainings_counts(client, log_study, four_runs):
    again = replace(four_runs[2], name="again", tags={"rampline.repeat_of": "mirrored"})
    log_study("seeds", [checked(four_runs[2], "pass", max_loss_diff=0), checked(again, "fail")])
    assert [c.status for c in list_certificates(read_comparison(client, "seeds"))] == ["fail"]


def test_a_repeat_has_the_certificate_of_the_first_training(client, log_study, four_runs):
    again = replace(four_runs[2], name="again", tags={"rampline.repeat_of": "mirrored"})
    log_study("repeated", [checked(four_runs[2], "pass", max_loss_diff=0), again])
    assert [c.status for c in list_certificates(read_comparison(client, "repeated"))] == ["pass"]
