import dataclasses
import json
from pathlib import Path

import pytest
from executions import count_as_begun
from typer.testing import CliRunner

from rampline.cli import app
from rampline.config import ClusterConfig, LearningRateConfig, ParityConfig, RunConfig, StopConfig
from rampline.config.learning_rate import describe_schedule
from rampline.forecast.forecast import Calibration, Forecast
from rampline.forecast.plan import plan_remarks, plan_study, plan_table
from rampline.forecast.quote import quote_run
from rampline.imports import locate_own
from rampline.parity.check import ParityResult, result_file
from rampline.record.home import Home
from rampline.record.provenance import environment
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.record.units import write_percent
from rampline.study import Study, StudyRun, load_study
from rampline.study.execution_file import FILE, find_executions
from rampline.study.preflight import check_study
from rampline.tasks.page import plan_markdown

STARTUP, VALIDATION, CHECKPOINT = 2.0, 0.5, 0.25


def record(
    executions, execution: str, config: RunConfig, seconds: list[float], name: str = "baseline", *, once: float = 0.0
) -> None:
    """A complete run of an execution that begins now: its epochs took `seconds`, each a validation and checkpoint.

    Its first validation took `once` longer, and so did its log.
    """
    count_as_begun(executions / execution)
    directory = RunDirectory(executions / execution / name)
    directory.create(config, RunIdentity(study="s", name=name, dataset="/data"))
    events, now = [{"event": "started", "startup_seconds": STARTUP, "monotonic": STARTUP}], STARTUP
    for i, s in enumerate(seconds):
        validation = VALIDATION + (once if i == 0 else 0.0)
        figures = {"epoch_seconds": s, "images_per_second": 100 / s, "validation_seconds": validation}
        now += s + validation + CHECKPOINT
        events.append({"event": "epoch", "epoch": i + 1, "metrics": figures, "monotonic": now - CHECKPOINT})
        events.append({"event": "checkpoint", "seconds": CHECKPOINT, "monotonic": now})
    directory.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    result = {"epochs": len(seconds), "steps": 10 * len(seconds), "wall_seconds": now + once, "logging_seconds": once}
    directory.result_file.write_text(json.dumps(result))


def expected_seconds(executions, config: RunConfig) -> float | None:
    """The wall time that a plan of the run would show."""
    home = Home(root=executions.parent.parent)
    quote = quote_run(home, find_executions(home), "baseline", config, None, Calibration())
    return quote and quote.wall_seconds


@pytest.fixture
def executions(tmp_path):
    """The folder of the executions of a study."""
    return tmp_path / "runs" / "s"


def test_steps_of_prepared_data_come_before_those_of_the_study(digits, rampline_home, tmp_path):
    study = load_study("digits", only=["baseline"], overrides={"data.limit": "12"})
    run = dataclasses.replace(study.runs[0], train_examples=960)
    study = dataclasses.replace(study, runs=(run,))
    homes = (Home(root=rampline_home), Home(root=tmp_path))
    steps = [plan_study(check_study(study, home), home)[0] for home in homes]
    assert [(planned.steps_per_epoch, planned.is_prepared) for planned in steps] == [(4, True), (30, False)]


@pytest.mark.parametrize(
    "rate, text",
    [
        ({"schedule": "constant"}, "constant: 0.004"),
        ({"schedule": "steps", "decay": 0.5, "step_epochs": (1.5,)}, "steps: 0.004, 0.002 from epoch 1.5"),
        (
            {"schedule": "ramp", "hold_epochs": 3},
            "ramp: 1e-05 to 0.004 by epoch 2, held for 3, x 0.8 per epoch down to 1e-06",
        ),
        ({"schedule": "cosine"}, "cosine: 1e-05 to 0.004 by epoch 2, half a cosine down to 1e-06"),
    ],
)
def test_a_schedule_in_words_is_that_of_the_scaled_rate(rate, text):
    cluster, rates = ClusterConfig(replicas=4), LearningRateConfig(peak=1e-3, scale_with="replicas", **rate)
    assert describe_schedule(RunConfig(strategy="mirrored", cluster=cluster, learning_rate=rates)) == text


def test_expected_time_is_that_of_the_newest_run_with_as_many_epochs(executions):
    config = RunConfig(epochs=10)
    record(executions, "20260101-000000", config, [9.0, 9.0, 9.0])
    record(executions, "20260201-000000", dataclasses.replace(config, epochs=4), [5.0, 1.0, 3.0, 2.0])
    assert expected_seconds(executions, config) == pytest.approx(STARTUP + 3.0 + 10 * (2.0 + VALIDATION + CHECKPOINT))


def test_expected_time_is_the_median_of_the_latest_three_trainings(executions):
    config = RunConfig(epochs=2)
    for execution, name, seconds in (
        ("20260101-000000", "baseline", 9.0),
        ("20260201-000000", "baseline", 3.0),
        ("20260201-000000", "baseline-seed1", 1.0),
        ("20260201-000000", "baseline-seed2", 2.0),
        ("20260201-000000", "baseline-wide", 7.0),
    ):
        record(executions, execution, config, [seconds, seconds], name)
    assert expected_seconds(executions, config) == pytest.approx(STARTUP + 2 * (2.0 + VALIDATION + CHECKPOINT))


def test_a_limit_of_the_time_ends_all_but_the_first_epoch(executions):
    record(executions, "20260101-000000", RunConfig(epochs=10), [90.0, 60.0, 60.0])
    whole = STARTUP + 30.0 + 10 * (60.0 + VALIDATION + CHECKPOINT)
    limits = {0.5: STARTUP + 90.0 + VALIDATION + CHECKPOINT, 3: 180, 60: whole}
    for minutes, expected in limits.items():
        config = RunConfig(epochs=10, stop=StopConfig(max_minutes=minutes, patience=2))
        study = Study(name="s", description="", reference="baseline", runs=(StudyRun(name="baseline", config=config),))
        planned = plan_study(study, Home(root=executions.parent.parent))
        assert planned[0].expected_seconds == pytest.approx(expected)


def test_one_epoch_is_expected_to_take_what_it_is_quoted_to(executions):
    config = RunConfig(epochs=1)
    # The usual epoch was slower than the mean.
    record(executions, "20260101-000000", dataclasses.replace(config, epochs=4), [9.0, 2.0, 2.0, 1.0])
    study = Study(name="s", description="", reference="baseline", runs=(StudyRun(name="baseline", config=config),))
    (planned,) = plan_study(study, Home(root=executions.parent.parent))
    assert planned.quote is not None
    assert planned.expected_seconds == planned.quote.wall_seconds


def test_the_plan_says_at_most_where_a_run_may_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    study = tmp_path / "s.yaml"
    study.write_text(
        "base: {epochs: 10, cluster: {price_per_hour: 72}}\nruns: {baseline: {set: {stop: {patience: 3}}}}"
    )
    config = load_study(str(study)).runs[0].config
    record(Home(root=tmp_path / "home").runs / "s", "20260101-000000", config, [20.0, 10.0, 10.0])
    output = CliRunner().invoke(app, ["plan", str(study)]).output
    for words in ("at most 10", "at most 120 s", "at most $2.39", "expected time: at most 120 s"):
        assert words in " ".join(output.split())
    assert "stops before its last epoch after 3 epochs without a better validation loss (baseline)" in output


def test_the_page_of_an_approval_tells_what_the_command_tells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").touch()
    (tmp_path / "s.yaml").write_text(
        "{expected_hours: a day, prices: {big: 72}, base: {epochs: 10, stop: {patience: 3}, cluster: {machine: big}},"
        "runs: {baseline: {train_examples: 960}, own: {set: {model: {name: 'nets:net'}}}}}"
    )
    study, home = load_study("s.yaml"), Home(root=tmp_path / "home")
    record(home.runs / "s", "20260101-000000", study.runs[0].config, [20.0, 10.0, 10.0])
    known, unknown = plan_study(study, home)
    assert known.quote is not None
    quote = dataclasses.replace(known.quote, wall_factor=2.0)
    planned = [dataclasses.replace(known, quote=quote), unknown]
    page = plan_markdown(study, planned)
    within = write_percent(quote.wall_factor - 1)
    assert within != write_percent(quote.factor - 1)
    row = f"| baseline | single | 1 chief | CPU | 64 | 64 | at most 10 | 15\\* | 0.001 | at most 120 s | {within} |"
    assert f"{row} at most $2.39 |\n| own | " in page
    assert "The study says how long it takes: a day." in page
    remarks = [line.removeprefix("- ") for line in page.replace("\\", "").splitlines() if line.startswith("- ")]
    assert remarks == [line.replace("your", "the flow run's") for line in plan_remarks(study, planned)]
    assert [line.split()[0] for line in remarks] == ["stops", "*", "steps", "time", "time", "cost", "imports"]
    assert "\n- \\* from the 960 training images" in page


def test_the_plan_says_at_most_of_a_grid_that_is_halved_and_when_it_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    study = tmp_path / "s.yaml"
    study.write_text("base: {epochs: 18}\ngrid: {g: {search: halving, over: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8]}}}")
    plan = " ".join(CliRunner().invoke(app, ["plan", str(study), "--set", "stop.patience=3"]).output.split())
    assert plan.count("at most 18") == 9
    patience = "after 3 epochs without a better validation loss"
    assert f"{patience} or after epoch 2 or 6 unless it is among the best third of grid g (g-0, g-1" in plan
    for few in (["--set", "epochs=5"], ["--only", "g-1"]):
        plan = CliRunner().invoke(app, ["plan", str(study), *few]).output
        assert "at most" not in plan
        assert "grid g stops no run: halving needs two runs and 6 epochs" in plan


def test_an_execution_that_its_user_has_named_counts(executions):
    config = RunConfig(epochs=2)
    record(executions, "20260101-000000", config, [9.0, 9.0])
    record(executions, "after-the-move", config, [2.0, 2.0])
    assert expected_seconds(executions, config) == pytest.approx(STARTUP + 2 * (2.0 + VALIDATION + CHECKPOINT))


def test_one_epoch_that_holds_the_tracing_says_nothing_of_more(executions):
    config = RunConfig(epochs=4)
    record(executions, "20260101-000000", config, [5.0, 2.0, 2.0, 2.0])
    record(executions, "20260102-000000", dataclasses.replace(config, epochs=1), [9.0])
    whole = STARTUP + 3.0 + 4 * (2.0 + VALIDATION + CHECKPOINT)
    assert expected_seconds(executions, config) == pytest.approx(whole)
    one = expected_seconds(executions, dataclasses.replace(config, epochs=1))
    assert one == pytest.approx(STARTUP + 9.0 + VALIDATION + CHECKPOINT)


def test_the_single_epoch_of_an_explanation_does_not_count(executions):
    config = RunConfig(epochs=1)
    record(executions, "explain-20260301-000000-ab12", config, [5.0])
    (executions / "explain-20260301-000000-ab12" / FILE).unlink()  # that command writes none
    assert expected_seconds(executions, config) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "mixed_bfloat16"},
        {"checkpoint_every_epochs": 5},
        {"tensorboard": "histograms"},
        {"log_examples": True},
    ],
)
def test_other_settings_are_no_measurement(executions, settings):
    record(executions, "20260101-000000", RunConfig(**settings), [1.0, 1.0])
    assert expected_seconds(executions, RunConfig(**settings)) is not None
    assert expected_seconds(executions, RunConfig()) is None


def test_a_run_by_another_version_whose_settings_are_gone_blocks_nothing(executions):
    config = RunConfig(epochs=2)
    record(executions, "20260101-000000", config, [2.0, 2.0])
    record(executions, "20260102-000000", config, [9.0, 9.0])
    record(executions, "20260103-000000", config, [9.0, 9.0])
    oldest, newer, newest = (executions / f"2026010{day}-000000/baseline/config.json" for day in (1, 2, 3))
    settings = json.loads(oldest.read_text())
    oldest.write_text(json.dumps(settings | {"gone": 1}))
    # A setting that is not there may have been another.
    newer.write_text(json.dumps({key: value for key, value in settings.items() if key != "precision"}))
    newest.write_text("{")
    assert expected_seconds(executions, config) == pytest.approx(STARTUP + 2 * (2.0 + VALIDATION + CHECKPOINT))


def test_a_parity_check_by_another_version_says_nothing(executions):
    for execution, content in (("20260101-000000", '{"status": "pass", "seconds": 20.0}'), ("20260102-000000", "[]")):
        count_as_begun(executions / execution)
        file = result_file(RunDirectory(executions / execution / "a"))
        file.parent.mkdir(parents=True)
        file.write_text(content)
    run = StudyRun(name="a", config=RunConfig(parity=ParityConfig()))
    study = Study(name=executions.name, description="", reference="a", runs=(run,))
    assert plan_study(study, Home(root=executions.parent.parent))[0].parity_seconds == 20.0


def test_a_run_on_another_machine_is_no_measurement_of_this_one(executions):
    config = RunConfig(epochs=2)
    for execution, items in (("20260101-000000", environment()), ("20260102-000000", {"host": "laptop"})):
        record(executions, execution, config, [2.0 if items.get("gpus") else 9.0] * 2)
        attempt = {"event": "attempt", "number": 1, "environment": items}
        (executions / execution / "baseline/attempts.jsonl").write_text(json.dumps(attempt) + "\n")
    assert expected_seconds(executions, config) == pytest.approx(STARTUP + 2 * (2.0 + VALIDATION + CHECKPOINT))


def test_a_run_that_was_started_again_counts_as_if_it_had_been_started_once(executions):
    config = RunConfig(epochs=4)
    record(executions, "20260101-000000", config, [5.0, 2.0, 2.0, 2.0])
    run = RunDirectory(executions / "20260101-000000" / "baseline")
    events = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    again = {"event": "started", "startup_seconds": STARTUP, "monotonic": 99.0, "first_epoch": 3, "attempt": 2}
    events.insert(5, again)
    events[6]["metrics"]["epoch_seconds"] = 5.0
    run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    result = json.loads(run.result_file.read_text()) | {"wall_seconds": 300.0, "attempts": 2}
    run.result_file.write_text(json.dumps(result))
    whole = STARTUP + 3.0 + 4 * (2.0 + VALIDATION + CHECKPOINT)
    assert expected_seconds(executions, config) == pytest.approx(whole)


def test_what_the_first_validation_and_the_first_log_take_longer_is_in_no_other_epoch(executions):
    record(executions, "20260101-000000", RunConfig(epochs=2), [2.0, 2.0], once=3.0)
    expected = expected_seconds(executions, RunConfig(epochs=8))
    assert expected == pytest.approx(STARTUP + 2 * 3.0 + 8 * (2.0 + VALIDATION + CHECKPOINT))


def test_what_is_unexplained_of_an_epoch_is_in_each_of_more(executions):
    record(executions, "20260101-000000", RunConfig(epochs=4), [2.0, 2.0, 2.0, 4.0])
    each = VALIDATION + CHECKPOINT + 0.5 + 2.0
    assert expected_seconds(executions, RunConfig(epochs=8)) == pytest.approx(STARTUP + 8 * each)


def test_an_epoch_that_a_limit_has_cut_short_is_in_none_of_more(executions):
    record(executions, "20260101-000000", RunConfig(epochs=4), [2.0, 2.0])
    result = RunDirectory(executions / "20260101-000000" / "baseline").result_file
    cut = {"stopped": "after epoch 2 of 4: limit of 0.5 minutes reached", "wall_seconds": 30.0}
    result.write_text(json.dumps(json.loads(result.read_text()) | cut))
    assert expected_seconds(executions, RunConfig(epochs=8)) == pytest.approx(
        STARTUP + 8 * (2.0 + VALIDATION + CHECKPOINT)
    )


def test_a_run_that_is_called_as_a_repeat_would_be_finds_its_earlier_ones(executions):
    config, home = RunConfig(epochs=2), Home(root=executions.parent.parent)
    record(executions, "20260101-000000", config, [2.0, 2.0], "x-seed1")
    for run in ("x-seed1", "x"):
        assert quote_run(home, find_executions(home), run, config, None, Calibration()) is not None


def test_the_plan_has_costs_where_another_run_than_the_first_has_a_price():
    priced = RunConfig(cluster=ClusterConfig(price_per_hour=3.6))
    runs = (StudyRun(name="a", config=RunConfig()), StudyRun(name="b", config=priced))
    study = Study(name="s", description="", reference="a", runs=runs)
    columns, rows = plan_table(plan_study(study, Home(root=Path("nowhere"))))
    assert (columns[-1], [row[-1] for row in rows]) == ("cost", ["", "?"])


def test_cost_is_time_at_the_price(executions):
    config = RunConfig(epochs=3, cluster=ClusterConfig(price_per_hour=36.0))
    record(executions, "20260101-000000", config, [20.0, 10.0, 10.0])
    study = Study(name="s", description="", reference="baseline", runs=(StudyRun(name="baseline", config=config),))
    seconds = STARTUP + 10.0 + 3 * (10.0 + VALIDATION + CHECKPOINT)
    assert plan_study(study, Home(root=executions.parent.parent))[0].expected_cost_usd == pytest.approx(seconds / 100)


def test_a_price_of_ones_own_needs_no_run_at_that_price(executions):
    named = RunConfig(epochs=2, cluster=ClusterConfig(price_per_hour=36.0, machine="one", machines=2))
    record(executions, "20260101-000000", named, [2.0, 2.0])
    own = RunConfig(epochs=2, cluster=ClusterConfig(price_per_hour=72.0))
    assert expected_seconds(executions, own) == expected_seconds(executions, named)


def test_a_model_of_the_users_own_is_located_without_running_it(tmp_path):
    package = tmp_path / "mine" / "inner"
    package.mkdir(parents=True)
    executed = tmp_path / "executed"
    for file in (tmp_path / "mine/__init__.py", package / "__init__.py", package / "nets.py"):
        file.write_text(f"open({str(executed)!r}, 'w')")
    assert locate_own("mine.inner.nets:net", tmp_path) == str(package / "nets.py")
    assert locate_own("mine.inner:net", tmp_path) == str(package / "__init__.py")
    assert locate_own("mine.other:net", tmp_path) is None
    assert locate_own("no.such:net", tmp_path) is None
    assert not executed.exists()


def test_the_plan_names_the_file_that_is_imported(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text("raise SystemExit('executed')")
    (tmp_path / "own.yaml").write_text("runs: {a: {set: {model: {name: 'nets:net'}}}}")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", "own.yaml"])
    assert result.exit_code == 0
    assert f"imports nets:net from {tmp_path}/nets.py; it runs with your rights in every role process" in result.output


def test_the_plan_tells_how_long_the_parity_checks_took(executions):
    runs = {"a": ParityConfig(), "b": ParityConfig(), "unchecked": ParityConfig(steps=0)}
    for execution, seconds in (("20260101-000000", 99.0), ("20260201-000000", 20.0)):
        for name in runs:
            count_as_begun(executions / execution)
            file = result_file(RunDirectory(executions / execution / name))
            file.parent.mkdir(parents=True)
            ParityResult(status="pass", seconds=seconds).write(file)
    study = Study(
        name=executions.name,
        description="",
        reference="a",
        runs=tuple(StudyRun(name=name, config=RunConfig(parity=parity)) for name, parity in runs.items()),
    )
    remarks = plan_remarks(study, plan_study(study, Home(root=executions.parent.parent)))
    assert remarks[-1] == "parity checks, which are not in these times: 40.0 s, as the last ones took"


def test_a_run_on_images_that_the_folder_no_longer_has_says_nothing(executions, digits):
    config, home = RunConfig(epochs=2), Home(root=executions.parent.parent)

    def quote() -> Forecast | None:
        return quote_run(home, find_executions(home), "baseline", config, digits, Calibration())

    record(executions, "20260101-120000-aaaa", config, [1.0, 1.0])
    assert expected_seconds(executions, config) is not None
    assert quote() is None
    record(executions, "20260102-120000-aaaa", config, [1.0, 1.0])
    identity = executions / "20260102-120000-aaaa/baseline/run.json"
    identity.write_text(identity.read_text().replace("/data", str(digits.directory)))
    assert quote() is not None
