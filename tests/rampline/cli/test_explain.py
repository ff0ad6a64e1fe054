"""`rampline explain`: an execution's explanations as a user reads them, wrong input, and measuring on the spot."""

import json
from pathlib import Path

import pytest

from rampline.explain.explanation import Explanation, Verdict
from rampline.explain.parts import RunParts, StepParts
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.study import load_study
from rampline.study.execution_file import Execution

STUDY = """
name: tiny
base: {epochs: 3, steps_per_call: 4, data: {source: digits, limit: 12}, batch: {size: 28}}
runs:
  first: {set: {explain: {steps: 0}, learning_rate: {schedule: ramp, ramp_epochs: 2}}}
  second: {set: {model: {weights: "run:first"}}}
"""


def explained(compute: float, sentence: str) -> Explanation:
    return Explanation(
        step=StepParts(input=1.0, compute=compute, contention=0.25, sync=0.5, other=0.25),
        run=RunParts(startup=6, tracing=2, steps=1990, evaluation=1, checkpoint=1, logging=0.5, unexplained=-0.5),
        verdict=Verdict(bound="compute", share=0.5, gain=2.0, sentence=sentence),
        ceiling_images_per_second=None,
        slowdown=1.0,
    )


def make_execution(home: Path, name: str, **explanations: Explanation) -> Path:
    """An execution of `digits` whose runs are explained, as `rampline run` leaves it."""
    folder, study = home / "runs" / "digits" / name, load_study("digits")
    Execution(folder=folder, study=study, home=Home(root=home), parent_run_id="0").write()
    for run, explanation in explanations.items():
        directory = RunDirectory(folder / run.replace("_", "-"))
        directory.create(study.runs[0].config, RunIdentity(study="digits", name=run, dataset=""))
        explanation.write(directory.explanation_file)
    return folder


def test_the_latest_execution_is_shown(rampline, home: Path) -> None:
    make_execution(home, "first", baseline=explained(1.0, "an earlier one"))
    make_execution(
        home,
        "second",
        multi_worker=explained(2.0, "compute-bound: so"),
        baseline=explained(2000.0, "compute-bound: and"),
    )
    result = rampline("explain", "digits")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]
    # In the order in which they were made, and of 4 and of 2,002 ms.
    assert "multi-worker 1.0 (25 %) 2.0 (50 %) 0.25 (6 %) 0.50 (12 %) 0.25 (6 %) 4.0" in lines
    assert "baseline 1.0 (0 %) 2,000 (100 %) 0.25 (0 %) 0.50 (0 %) 0.25 (0 %) 2,002" in lines
    assert "baseline 6.0 (0 %) 2.0 (0 %) 1,990 (100 %) 1.0 (0 %) 1.0 (0 %) 0.50 (0 %) -0.50 (0 %) 2,000" in lines
    assert lines[-2:] == ["multi-worker: compute-bound: so", "baseline: compute-bound: and"]
    one = rampline("explain", "digits", "--only", "baseline")
    assert one.returncode == 0
    assert "baseline: compute-bound: and" in one.stdout
    assert "multi-worker" not in one.stdout
    absent = rampline("explain", "digits", "--only", "baseline-fit")
    assert absent.returncode == 2
    assert "run baseline-fit of" in absent.stderr
    assert "is not explained: there are multi-worker, baseline" in absent.stderr


def test_an_execution_without_probes_says_what_to_do(rampline, home: Path) -> None:
    make_execution(home, "first")
    result = rampline("explain", "digits")
    assert (result.returncode, result.stdout) == (2, "")
    assert "was probed (explain.steps=0?): `rampline explain digits --measure` does it" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_measuring_takes_one_epoch_of_each_run_also_of_those_without_probes(
    rampline, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    result = rampline("explain", "tiny.yaml", "--measure", "--set", "seed=7", "--set", "repeats=2")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count(": one epoch and its probes") == 2
    # No repeat, and both runs have one and the same replica but for the probes' steps.
    assert result.stdout.count("explain: one replica's work, alone") == 1
    (folder,) = home.glob("runs/tiny/explain-*")
    for name in ("first", "second"):
        config = RunDirectory(folder / name).read_config()
        assert (config.epochs, config.explain.steps, config.model.weights, config.seed) == (1, 20, "none", 7)
        found = Explanation.read(folder / name / "explanation.json")
        # 120 examples in batches of 28.
        assert found.run.steps == pytest.approx(5 * found.step.total / 1000)
        assert found.run.total == pytest.approx(json.loads((folder / name / "result.json").read_text())["wall_seconds"])
        # Of two causes, where a busy machine does not tell them apart.
        assert f"{name}: {found.verdict.sentence}" in " ".join(result.stdout.split())
    # A measurement is no execution.
    again = rampline("explain", "tiny.yaml")
    assert again.returncode == 2
    assert "study tiny.yaml has no execution" in again.stderr
