"""The explanation of a run in MLflow: parts, verdict and files, as often as somebody asks."""

import pytest

from rampline.explain.explanation import Explanation, Verdict
from rampline.explain.parts import RunParts, StepParts
from rampline.tracking.run_artifacts import log_explanation
from rampline.tracking.run_log import RunLog
from rampline.tracking.store import TrackingError
from rampline.training.timings import ReplicaProbes, StrategyProbes, Timings

SENTENCE = "input-bound: 60 % of each 10.0 ms step waits"
FIGURES = {
    **{"step_ms_input": 6.0, "step_ms_compute": 2.0, "step_ms_contention": 1.0, "step_ms_sync": 0.5},
    **{"step_ms_other": 0.25, "ceiling_images_per_second": 640.0},
    **{"startup_seconds": 7.0, "tracing_seconds": 3.0, "steps_seconds": 20.0, "evaluation_seconds": 2.0},
    **{"checkpoint_seconds": 1.0, "logging_seconds": 0.5, "unexplained_seconds": -1.5},
    "probe_slowdown": 1.0,
}
TIMINGS = Timings(milliseconds=(1.0, 2.0, 3.0), steps=48)


def explanation(**changes) -> Explanation:
    step = StepParts(**{part: FIGURES[f"step_ms_{part}"] for part in StepParts.__dataclass_fields__})
    run = RunParts(**{part: FIGURES[f"{part}_seconds"] for part in RunParts.__dataclass_fields__})
    verdict = Verdict(bound="input", share=0.6, gain=2.5, sentence=SENTENCE)
    values = {"step": step, "run": run, "verdict": verdict, "ceiling_images_per_second": 640.0, "slowdown": 1.0}
    return Explanation(**values | changes)


@pytest.fixture
def logged(client, study_log, make_run_directory):
    """A run directory, and its run in MLflow."""
    directory = make_run_directory()
    return directory, RunLog.open(client, directory, parent_run_id=study_log.run_id).run_id


def test_parts_verdict_and_files_are_there_once(client, logged, history):
    directory, run_id = logged
    explanation().write(directory.explanation_file)
    StrategyProbes(pipeline=TIMINGS, cached=TIMINGS, real=TIMINGS).write(directory.probes_file)
    ReplicaProbes(alone=TIMINGS, half=None, at_once=None, processes=1, batch_size=32).write(directory.replica_file)
    log_explanation(client, directory)
    log_explanation(client, directory)
    data = client.get_run(run_id).data
    assert {name: value for name, value in data.metrics.items() if name in FIGURES} == FIGURES
    assert (data.tags["rampline.verdict"], data.tags["rampline.bound"]) == (SENTENCE, "input")
    files = {file.path for file in client.list_artifacts(run_id, "explanation")}
    assert files == {f"explanation/{name}.json" for name in ("explanation", "probes", "replica")}
    for name, value in FIGURES.items():
        assert history(client, run_id, name) == [(0, value)]


def test_a_ceiling_that_was_not_measured_is_left_out(client, logged):
    directory, run_id = logged
    explanation(ceiling_images_per_second=None).write(directory.explanation_file)
    log_explanation(client, directory)
    assert FIGURES.keys() - client.get_run(run_id).data.metrics.keys() == {"ceiling_images_per_second"}
    assert [file.path for file in client.list_artifacts(run_id, "explanation")] == ["explanation/explanation.json"]


def test_a_run_that_was_not_explained_is_left_as_it_is(client, logged):
    directory, run_id = logged
    before = client.get_run(run_id).data
    log_explanation(client, directory)
    after = client.get_run(run_id).data
    assert (after.metrics, after.tags) == (before.metrics, before.tags)
    assert client.list_artifacts(run_id, "explanation") == []


def test_a_run_that_the_store_has_not_got_is_said(client, make_run_directory):
    directory = make_run_directory("unknown")
    log_explanation(client, directory)  # nothing to log, so nothing is missing
    explanation().write(directory.explanation_file)
    with pytest.raises(TrackingError, match=r"runs/unknown has no run in MLflow"):
        log_explanation(client, directory)
