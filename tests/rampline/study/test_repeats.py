"""Repeats: which trainings a study then has, in which order, and with which seeds."""

import pytest

from rampline.study import load_study

STUDY = """
base: {repeats: 3, seed: 4}
runs:
  one: {published: {test_accuracy: 0.9}}
  tuned: {set: {model: {weights: "run:one"}}}
  two: {set: {repeats: 2, strategy: mirrored, cluster: {replicas: 2}}}
  once: {set: {repeats: 1, model: {weights: "run:two"}}}
"""


def test_all_runs_once_then_once_more(write):
    study = load_study(write(STUDY))
    assert [run.name for run in study.runs] == [
        *("one", "tuned", "two", "once"),
        *("one-seed5", "tuned-seed5", "two-seed5"),
        *("one-seed6", "tuned-seed6"),
    ]
    assert [run.repeat_of for run in study.runs] == ["", "", "", "", "one", "tuned", "two", "one", "tuned"]
    assert [run.config.seed for run in study.runs] == [4, 4, 4, 4, 5, 5, 5, 6, 6]
    assert study.reference == "one"


def test_a_repeat_starts_from_the_same_repeat(write):
    study = load_study(write(STUDY))
    origins = {run.name: run.starts_from for run in study.runs if run.starts_from}
    assert origins == {"tuned": "one", "once": "two", "tuned-seed5": "one-seed5", "tuned-seed6": "one-seed6"}


def test_parity_is_checked_once(write):
    steps = {run.name: run.config.parity.steps for run in load_study(write(STUDY)).runs}
    assert steps["two"] > 0
    assert steps["two-seed5"] == 0


def test_a_run_is_kept_with_its_repeats(write):
    assert [run.name for run in load_study(write(STUDY), only=["two"]).runs] == ["two", "two-seed5"]
    assert [run.name for run in load_study(write(STUDY), only=["two-seed5"]).runs] == ["two-seed5"]
    kept = [run.name for run in load_study(write(STUDY), strategy="mirrored").runs]
    assert kept == ["two", "two-seed5"]
    # What a flow was started with: the names that the study then had.
    assert [run.name for run in load_study(write(STUDY), only=kept).runs] == kept


def test_settings_are_laid_over_a_run_of_which_a_repeat_alone_is_kept(write):
    content = STUDY + "  one-seed9: {set: {repeats: 1, strategy: multi_worker}}"
    overrides = {"epochs": "2", "one:batch.size": "8", "two:batch.size": "9", "cluster.launcher": "slurm"}
    (kept,) = load_study(write(content), only=["one-seed5"], overrides=overrides).runs
    assert (kept.name, kept.config.seed, kept.config.epochs, kept.config.batch.size) == ("one-seed5", 5, 2, 8)
    assert kept.config.cluster.launcher == "slurm"
    (kept,) = load_study(write(STUDY), only=["one-seed6"], overrides={"repeats": "4", "seed": "3"}).runs
    assert (kept.config.seed, kept.config.repeats) == (6, 4)
    # This one is only called as a repeat is: with these settings run one could not be.
    (kept,) = load_study(write(content), only=["one-seed9"], overrides={"cluster.workers": "2"}).runs
    assert (kept.repeat_of, kept.config.cluster.workers) == ("", 2)


def test_any_study_is_repeated_by_set():
    names = [run.name for run in load_study("digits", only=["baseline"], overrides={"repeats": "2"}).runs]
    assert names == ["baseline", "baseline-seed1"]


@pytest.mark.parametrize(
    "content, message",
    [
        ("runs: {a: {set: {repeats: 2}}, a-seed1: {}}", "run a-seed1 has the name that a repeat of another run gets"),
        ("runs: {a: {set: {repeats: 1001}}}", "with its repeats the study has 1001 runs: at most 1000 are allowed"),
        (
            "runs: {a: {set: {repeats: 2, seed: 4294967295}}}",
            "repeat 1 of run a: seed=4294967296 is not allowed: it must be a whole number of at least 0 and at most "
            "4294967295",
        ),
        ("runs: {a: {set: {repeats: 0}}}", "repeats=0 is not allowed: it must be a whole number of at least 1"),
    ],
)
def test_what_is_refused(write, refusal, content, message):
    assert message in refusal(write(content))
