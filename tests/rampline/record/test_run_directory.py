"""The run directory: what it is created with, and when it counts as complete."""

import json
import tracemalloc
from pathlib import Path

import pytest

from rampline.config import BatchConfig, LearningRateConfig, ModelConfig, RunConfig
from rampline.files import write_json
from rampline.record.events import EventReader
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.tasks.page import epoch_rows

CONFIG = RunConfig(epochs=3, learning_rate=LearningRateConfig(step_epochs=(1, 2)), batch=BatchConfig(per="replica"))
IDENTITY = RunIdentity(study="digits", name="baseline", dataset="/data/digits", published={"test_accuracy": 0.94})


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "baseline")
    directory.create(CONFIG, IDENTITY)
    return directory


def test_what_was_created_is_read_back(directory):
    assert directory.read_config() == CONFIG
    assert directory.read_identity() == IDENTITY
    assert sorted(path.name for path in directory.path.iterdir()) == ["config.json", "run.json"]
    assert json.loads(directory.config_file.read_text())["batch"] == {"size": 64, "per": "replica", "accumulate": 1}


def test_creating_the_same_run_again_changes_nothing(directory):
    before = directory.identity_file.stat().st_mtime_ns, directory.config_file.stat().st_mtime_ns
    directory.create(CONFIG, RunIdentity(study="digits", name="baseline", dataset="/elsewhere"))
    assert before == (directory.identity_file.stat().st_mtime_ns, directory.config_file.stat().st_mtime_ns)
    assert directory.read_identity() == IDENTITY


def test_another_configuration_is_refused_and_nothing_is_overwritten(directory):
    with pytest.raises(FileExistsError, match="holds a run with another configuration"):
        directory.create(RunConfig(epochs=4), IDENTITY)
    assert directory.read_config() == CONFIG


def test_weights_of_another_run_are_found_where_the_home_has_moved_to(tmp_path):
    before, after = tmp_path / "before" / "runs" / "digits" / "e1", tmp_path / "after" / "runs" / "digits" / "e1"
    checkpoint = Path("head", "checkpoints", "step-00000010")
    (before / checkpoint).mkdir(parents=True)
    config = RunConfig(model=ModelConfig(weights=str(before / checkpoint)))
    RunDirectory(before / "all").create(config, IDENTITY)
    assert RunDirectory(before / "all").read_config() == config
    (tmp_path / "before").rename(tmp_path / "after")
    moved = RunDirectory(after / "all")
    assert moved.read_config() == RunConfig(model=ModelConfig(weights=str(after / checkpoint)))
    # Of another execution, also one that another study has by that name, or not there: as it was.
    others = [before.parent / "e2" / checkpoint, before.parents[1] / "other" / "e1" / checkpoint]
    others += [before / "head" / "checkpoints" / "step-00000020", Path("/model.keras")]
    for number, weights in enumerate(map(str, others)):
        other = RunDirectory(after / f"other-{number}")
        other.create(RunConfig(model=ModelConfig(weights=weights)), IDENTITY)
        assert other.read_config().model.weights == weights


def test_a_run_is_complete_once_its_result_is_there(directory):
    assert not directory.is_complete
    directory.result_file.mkdir()
    assert not directory.is_complete
    directory.result_file.rmdir()
    write_json(directory.result_file, {"status": "complete"})
    assert directory.is_complete


def test_names_of_the_contract(tmp_path):
    directory = RunDirectory(tmp_path)
    named = (directory.config_file, directory.roles_file, directory.checkpoints, directory.logs, directory.tensorboard)
    assert [path.name for path in named] == ["config.json", "roles.json", "checkpoints", "logs", "tensorboard"]
    assert (directory.result_file.name, directory.events_file.name) == ("result.json", "events.jsonl")


def test_days_of_progress_cost_no_memory(directory):
    """52 bytes and more a line: 60,000 of them are 4 hours of training."""
    progress = json.dumps({"event": "progress", "time": 1.0, "epoch": 1, "step": 7, "loss": 0.25}) + "\n"
    epoch = json.dumps({"event": "epoch", "epoch": 1, "metrics": {"val_accuracy": 0.5}}) + "\n"
    directory.events_file.write_text(epoch + 60_000 * progress + epoch.replace("0.5", "0.75"))
    tracemalloc.start()
    try:
        rows = epoch_rows(directory)
        reader = EventReader(directory.events_file, from_end=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [row["val_accuracy"] for row in rows] == [0.75]
    assert list(reader.read()) == []
    assert peak < 2**20, f"{peak / 2**20:.0f} MiB"


def test_events_leave_out_a_line_that_is_still_being_written(directory):
    assert directory.read_events() == []
    directory.events_file.write_text('{"event": "started"}\n{"event": "epoch", "note": "a\\u2028b"}\n{"event": "fin')
    assert directory.read_events() == [{"event": "started"}, {"event": "epoch", "note": "a\u2028b"}]
