"""What MLflow should hold of a run is told by its directory alone."""

import dataclasses
import getpass
import hashlib
import json
import os
import platform

import pytest

from rampline.config import flatten
from rampline.data.dataset import PreparedDataset
from rampline.explain.explanation import Explanation, Verdict
from rampline.explain.parts import RunParts, StepParts
from rampline.files import write_json
from rampline.parity.check import Neutralised, ParityResult, result_file
from rampline.record.attempts import Attempts
from rampline.record.delivery_state import RUNNING, mark_undelivered
from rampline.record.provenance import process_identity
from rampline.tracking.description import EPOCHS, RunReader, make_dataset
from rampline.tracking.reconciliation import NOTE_TAG, Record

RESULT = {"status": "complete", "epochs": 3, "best_epoch": 2, "best_val_accuracy": 0.42}
RESULT |= {"train_seconds": 4.5, "wall_seconds": 12.0, "attempts": 2}
MIRRORED = {"strategy": "mirrored", "cluster": {"replicas": 2, "virtual_devices": 2}}
SENTENCE = "input-bound: 60 % of each 10.0 ms step waits"
EXPLAINED = {
    **{"step_ms_input": 6.0, "step_ms_compute": 2.0, "step_ms_contention": 1.0, "step_ms_sync": 0.5},
    **{"step_ms_other": 0.25, "ceiling_images_per_second": 640.0},
    **{"startup_seconds": 7.0, "tracing_seconds": 3.0, "steps_seconds": 20.0, "evaluation_seconds": 2.0},
    **{"checkpoint_seconds": 1.0, "logging_seconds": 0.5, "unexplained_seconds": -1.5},
    "probe_slowdown": 1.0,
}
LAYERS = (Neutralised(layer="Dropout", count=2, why="because"),)
PASS = ParityResult(status="pass", max_loss_diff=1e-15, max_weight_diff=2e-16, neutralised=LAYERS)
ASYNCHRONOUS = ParityResult(status="not_applicable", reason="asynchronous", mean_staleness=0.5, max_staleness=3)
NOT_FINITE = ParityResult(status="fail", reason="nan", losses=(1.0, None))


def epochs_of(record: Record) -> dict[int, dict]:
    return {moment.step: dict(moment.figures) for moment in record.moments if moment.series == EPOCHS}


def figures_of(record: Record) -> dict[str, float]:
    """What is told once, and is known."""
    once = [moment.figures for moment in record.moments if not moment.series]
    return {name: value for figures in once for name, value in figures.items() if value is not None}


def test_params_are_every_leaf_of_the_configuration_and_what_the_chief_derived(
    make_run_directory, started, append_events
):
    directory = make_run_directory()
    append_events(directory, started())
    params = RunReader(directory).read().params
    assert set(flatten(directory.read_config())) <= set(params)
    derived = ("replicas", "per_replica_batch_size", "global_batch_size", "steps_per_epoch", "peak_learning_rate")
    assert [params[name] for name in derived] == [2, 32, 64, 21, 0.002]


def test_a_compiled_model_has_its_words_in_place_of_the_settings_that_are_not_used(
    make_run_directory, started, append_events
):
    directory = make_run_directory(model={"name": "my_models:tuned"}, metrics=["top_5"])
    # Until a role has built the model nobody knows.
    unsettled = {
        key for key in flatten(directory.read_config()) if key.startswith(("optimizer", "learning", "loss", "met"))
    }
    assert not unsettled & set(RunReader(directory).read().params)
    brought = {"optimizer": "SGD(clipnorm=1)", "learning_rate": "CosineDecay(decay_steps=9)", "loss": "halved"}
    append_events(directory, started(compiled_with=brought, peak_learning_rate=0.5))
    record = RunReader(directory).read()
    assert {key: record.params[key] for key in brought} == brought
    assert (record.params["metrics"], record.params["peak_learning_rate"]) == (("top_5",), 0.5)
    assert not unsettled - {"metrics"} & set(record.params)
    assert "optimizer SGD(clipnorm=1), learning rate CosineDecay(decay_steps=9), loss halved" in str(
        record.tags[NOTE_TAG]
    )


def test_a_model_of_the_users_that_is_not_compiled_has_the_studys_settings(make_run_directory, started, append_events):
    directory = make_run_directory(model={"name": "my_models:plain"})
    append_events(directory, started())
    assert set(flatten(directory.read_config())) <= set(RunReader(directory).read().params)


def test_tags_are_those_of_the_contract(make_run_directory):
    directory = make_run_directory("mirrored", **MIRRORED)
    mark_undelivered(directory.path, RUNNING)
    record = RunReader(directory).read()
    expected = {
        "rampline.kind": "run",
        "rampline.run": "mirrored",
        "rampline.study": "digits",
        "rampline.execution": "e1",
        "rampline.strategy": "mirrored",
        "rampline.run_dir": str(directory.path),
        "rampline.attempts": "1",
        "rampline.status": "RUNNING",
        "rampline.process": process_identity(),
        "rampline.data_fingerprint": "0123abcd" * 8,
        "rampline.git_commit": "a" * 40,
        "mlflow.source.git.commit": "a" * 40,
        "mlflow.source.name": "rampline run digits",
        "mlflow.user": getpass.getuser(),
        "rampline.published.train_seconds": "2090.0",
        "rampline.published.test_accuracy": "0.94",
    }
    assert {name: record.tags.get(name) for name in expected} == expected
    assert record.status == "RUNNING"
    assert "rampline.parity" not in record.tags
    assert RunReader(make_run_directory("single")).read().tags["rampline.parity"] == "not_applicable"


def test_epochs_have_their_number_as_step_and_the_time_of_their_event(
    make_run_directory, started, epoch, append_events
):
    directory = make_run_directory()
    append_events(directory, started(), epoch(1), {"event": "progress", "time": 1.0, "loss": 9.0}, epoch(2))
    moments = [moment for moment in RunReader(directory).read().moments if moment.series == EPOCHS]
    assert [(moment.step, moment.time, moment.figures["train_loss"]) for moment in moments] == [
        (1, 1010.0, 1.0),
        (2, 1020.0, 0.5),
    ]


def test_epochs_that_were_lost_and_not_trained_again_are_none(make_run_directory, started, epoch, append_events):
    directory = make_run_directory()
    append_events(directory, started(first_epoch=1), *map(epoch, (1, 2, 3, 4)))
    append_events(directory, started(attempt=2, first_epoch=2), epoch(2, val_loss=0.25))
    epochs = epochs_of(RunReader(directory).read())
    assert {step: figures["val_loss"] for step, figures in epochs.items()} == {1: 2.0, 2: 0.25}


def test_a_run_that_mlflow_has_whole_keeps_its_number_of_attempts(make_run_directory, started, append_events):
    directory = make_run_directory()
    append_events(directory, started(attempt=3))
    mark_undelivered(directory.path, "FAILED")
    assert RunReader(directory).read().tags["rampline.attempts"] == "3"
    assert "rampline.attempts" not in RunReader(directory, from_end=True).read().tags


def test_what_was_read_is_not_read_again(make_run_directory, started, epoch, append_events):
    directory = make_run_directory()
    reader = RunReader(directory)
    append_events(directory, started(), epoch(1))
    assert epochs_of(reader.read()).keys() == {1}
    append_events(directory, epoch(2))
    assert epochs_of(reader.read()).keys() == {2}
    last = reader.read()
    assert epochs_of(last) == {}
    assert last.params["steps_per_epoch"] == 21  # what is no moment is told every time
    later = RunReader(directory, from_end=True)
    append_events(directory, epoch(3))
    assert epochs_of(later.read()).keys() == {3}


def test_the_result_has_times_and_the_price_of_the_hours_from_start_to_end(make_run_directory):
    priced, free = make_run_directory("priced", cluster={"price_per_hour": 36.0}), make_run_directory("free")
    for directory in (priced, free):
        write_json(directory.result_file, RESULT)
        os.utime(directory.result_file, (2000.5, 2000.5))
    record = RunReader(priced).read()
    assert figures_of(record) == {
        "cost_usd": pytest.approx(36.0 * 12.0 / 3600),
        **{name: RESULT[name] for name in ("train_seconds", "wall_seconds", "best_epoch", "best_val_accuracy")},
    }
    assert [moment.time for moment in record.moments] == [2000.5]
    assert record.tags["rampline.attempts"] == "2"
    assert "cost_usd" not in figures_of(RunReader(free).read())


def test_a_run_that_stopped_before_its_last_epoch_says_why(make_run_directory):
    stopped = "after epoch 3 of 5: target accuracy 0.4 reached"
    for name, told in (("decided", stopped), ("whole", None)):
        directory = make_run_directory(name)
        write_json(directory.result_file, {**RESULT, "stopped": told})
        assert RunReader(directory).read().tags.get("rampline.stopped") == told


def test_the_workers_of_each_attempt_are_told_where_they_were_not_always_all(make_run_directory):
    for name, workers, tag in (("whole", (1, 1), None), ("fewer", (1, 2), "1, 2")):
        directory = make_run_directory(name)
        for count in workers:
            Attempts(directory.attempts_file).begin(count)
        write_json(directory.result_file, RESULT)
        assert RunReader(directory).read().tags.get("rampline.workers") == tag


@pytest.mark.parametrize("status", ["COMPLETE", "FAILED", "KILLED", "PREEMPTED"])
def test_how_it_ended_is_what_was_marked(make_run_directory, append_events, status):
    directory, failure = make_run_directory(), None if status == "COMPLETE" else "worker 1 died: see logs/worker-1.log"
    append_events(directory, {"event": "failed", "time": 1.0, "message": "worker 1 died"})
    mark_undelivered(directory.path, RUNNING)
    assert RunReader(directory).read().tags["rampline.failure"] == "worker 1 died"
    mark_undelivered(directory.path, status, failure)
    record = RunReader(directory).read()
    assert (record.status, record.tags["rampline.status"], record.tags["rampline.failure"]) == (status, status, failure)
    write_json(directory.result_file, RESULT)
    assert RunReader(directory).read().status == "COMPLETE"


def test_a_run_that_nobody_has_ended_says_why_as_far_as_it_knows(make_run_directory, append_events, started):
    directory = make_run_directory()
    record = RunReader(directory).read()
    assert (record.status, record.tags["rampline.failure"]) == ("KILLED", "the process that ran it is gone")
    append_events(directory, started(), {"event": "failed", "time": 1.0, "message": "loss is not finite"})
    record = RunReader(directory).read()
    assert (record.status, record.tags["rampline.failure"]) == ("FAILED", "loss is not finite")
    append_events(directory, started(attempt=2))
    assert RunReader(directory).read().status == "KILLED"


def test_the_last_warning_is_a_tag(make_run_directory, append_events):
    directory = make_run_directory()
    warnings = [{"event": "warning", "time": 1.0, "message": f"{name} was restarted"} for name in ("first", "second")]
    append_events(directory, *warnings, {"event": "stopped", "time": 3.0, "step": 7, "epoch": 1})
    assert RunReader(directory).read().tags["rampline.warning"] == "second was restarted"


def test_a_run_that_is_delivered_later_has_the_times_at_which_it_ran(make_run_directory, started, append_events):
    directory = make_run_directory()
    append_events(directory, started(time=1_700_000_000.25))
    os.utime(directory.events_file, (1_700_000_100.5, 1_700_000_100.5))
    assert (RunReader(directory).began(), RunReader(directory).read().ended) == (1_700_000_000.25, 1_700_000_100.5)


def test_a_run_that_went_on_elsewhere_says_which_epochs_were_trained_where(
    make_run_directory, started, append_events, monkeypatch
):
    directory, hosts = make_run_directory(), ["alpha", "alpha", "beta", "alpha"]
    starts = []
    for number, (host, first_epoch) in enumerate(zip(hosts, [1, 2, 4, 3], strict=True), start=1):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        attempts = Attempts(directory.attempts_file)
        attempts.begin(1)
        assert attempts.number == number
        starts.append(started(attempt=number, first_epoch=first_epoch))
    append_events(directory, *starts[:3])
    reader = RunReader(directory)
    tags = reader.read().tags
    cores = f"{os.cpu_count()} cores"
    on_alpha, on_beta = ([first, f"{host} ({cores})"] for first, host in ((1, "alpha"), (4, "beta")))
    assert json.loads(str(tags["rampline.machines"])) == [on_alpha, on_beta]
    assert tags["rampline.first_epochs"] == "[1, 2, 4]"
    assert (tags["rampline.environment.host"], "rampline.environment.tensorflow" in tags) == ("beta", True)
    # Epoch 3 was begun again on the first machine.
    append_events(directory, starts[3])
    for record in (reader.read(), RunReader(directory).read()):
        assert json.loads(str(record.tags["rampline.machines"])) == [on_alpha]
        assert record.tags["rampline.first_epochs"] == "[1, 2, 3]"


def test_a_run_of_an_earlier_version_does_not_know_its_first_machine(make_run_directory, started, append_events):
    directory = make_run_directory()
    directory.attempts_file.write_text(json.dumps({"event": "attempt", "time": 1.0, "number": 1}) + "\n")
    Attempts(directory.attempts_file).begin(1)
    append_events(directory, started(), started(attempt=2, first_epoch=3))
    machines = json.loads(str(RunReader(directory).read().tags["rampline.machines"]))
    assert [first for first, _ in machines] == [1, 3]
    assert (machines[0][1], machines[1][1].startswith(platform.node())) == ("", True)


@pytest.mark.parametrize(
    "result, figures",
    [
        (PASS, {"parity_max_loss_diff": 1e-15, "parity_max_weight_diff": 2e-16}),
        (ASYNCHRONOUS, {"parity_mean_staleness": 0.5, "parity_max_staleness": 3}),
        (NOT_FINITE, {}),
    ],
    ids=["pass", "asynchronous", "not finite"],
)
def test_parity(make_run_directory, result, figures):
    directory = make_run_directory(**MIRRORED)
    result.write(result_file(directory))
    assert ParityResult.read(result_file(directory)) == result
    record = RunReader(directory).read()
    assert record.tags["rampline.parity"] == result.status
    assert figures_of(record) == figures
    assert record.artifacts["parity.json"] == result_file(directory)


def test_an_evaluation(make_run_directory, evaluation):
    directory = make_run_directory()
    write_json(directory.evaluation_file, evaluation)
    answers = directory.path / "predictions.csv"
    answers.write_text("index,label,prediction,probability\n0,1,1,0.5\n")
    record = RunReader(directory).read()
    assert figures_of(record) == {"test_accuracy": 0.9, "test_loss": 0.25, "test_examples": 20}
    assert record.tags["rampline.test_split"] == "test"
    assert record.tags["rampline.answers"] == hashlib.sha256(answers.read_bytes()).hexdigest()[:16]
    assert {"evaluation.json", "predictions.csv"} <= record.artifacts.keys()
    assert record.model is None
    directory.model.mkdir()
    assert RunReader(directory).read().model == directory.model


def test_an_explanation(make_run_directory):
    directory = make_run_directory()
    assert "rampline.verdict" not in RunReader(directory).read().tags
    step = StepParts(**{part: EXPLAINED[f"step_ms_{part}"] for part in StepParts.__dataclass_fields__})
    run = RunParts(**{part: EXPLAINED[f"{part}_seconds"] for part in RunParts.__dataclass_fields__})
    verdict = Verdict(bound="input", share=0.6, gain=2.5, sentence=SENTENCE)
    explanation = Explanation(step=step, run=run, verdict=verdict, ceiling_images_per_second=640.0, slowdown=1.0)
    explanation.write(directory.explanation_file)
    write_json(directory.probes_file, {})
    record = RunReader(directory).read()
    assert figures_of(record) == EXPLAINED
    assert (record.tags["rampline.verdict"], record.tags["rampline.bound"]) == (SENTENCE, "input")
    assert {"explanation/explanation.json", "explanation/probes.json"} <= record.artifacts.keys()
    dataclasses.replace(explanation, ceiling_images_per_second=None).write(directory.explanation_file)
    assert EXPLAINED.keys() - figures_of(RunReader(directory).read()).keys() == {"ceiling_images_per_second"}


def test_the_same_content_prepared_otherwise_is_another_dataset(dataset):
    prepared = PreparedDataset.open(dataset)
    smaller = dataclasses.replace(
        prepared, directory=dataset.parent / "digits-89abcdef01234567", splits={"train": 5, "validation": 1}
    )
    assert make_dataset(prepared).digest == "0123abcd0123-0123"
    assert make_dataset(smaller).digest == "0123abcd0123-89abcdef"
