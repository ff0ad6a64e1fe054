"""The file of settings: what is written is what `rampline run --overrides` reads."""

from pathlib import Path

import pytest
import yaml

from rampline.cli.arguments import all_overrides
from rampline.config.formats import PlainLoader
from rampline.errors import ConfigError
from rampline.study import load_study
from rampline.study.yaml_file import read_overrides, write_overrides

SETTINGS = {"steps_per_call": 41, "xla": True, "data.prefetch": "off", "learning_rate.peak": 0.002828}


def test_what_is_written_changes_that_run_of_the_study_alone(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "baseline.yaml"
    write_overrides(file, "baseline", SETTINGS, heading="Found by a test\nin two lines")
    assert file.read_text().startswith("# Found by a test\n# in two lines\nbaseline:steps_per_call: 41\n")
    study = load_study("digits", overrides=read_overrides(file))
    config = study.run("baseline").config
    assert (config.steps_per_call, config.xla, config.data.prefetch) == (41, True, "off")
    assert config.learning_rate.peak == 0.002828
    assert study.run("multi-worker").config == load_study("digits").run("multi-worker").config


@pytest.mark.parametrize(
    "content, message",
    [
        ("- 1\n", "must map keys to values"),
        ("3: 4\n", "3 is no key of a setting"),
        ("epochs: 2026-01-01\n", "is not a plain value"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_overrides(file)


def test_a_setting_for_every_run_wins_over_those_of_the_file_for_one(tmp_path: Path) -> None:
    file = tmp_path / "baseline.yaml"
    write_overrides(file, "baseline", SETTINGS, heading="Found by a test")
    overrides = all_overrides(file, ["steps_per_call=1", "mirrored-ramp:xla=false", "cluster.launcher=ray"])
    assert overrides["baseline:xla"] == "true"
    study = load_study("digits", overrides=overrides)
    assert [study.run(run).config.steps_per_call for run in ("baseline", "mirrored-ramp")] == [1, 1]
    # One for a run leaves those of the file for others.
    assert [study.run(run).config.xla for run in ("baseline", "mirrored-ramp")] == [True, False]


@pytest.mark.parametrize(
    "value", ["folder:\U0001f600", "a\u2028b", "off", "[", "1:30", "a " * 100, 1e-07, {"alpha": 1e-07}, [1, 2]]
)
def test_values_of_a_file_come_through(tmp_path: Path, value: object) -> None:
    write_overrides(tmp_path / "file.yaml", "baseline", {"model.options": value}, heading="Found by a test")
    (text,) = read_overrides(tmp_path / "file.yaml").values()
    assert "\n" not in text
    assert yaml.load(text, Loader=PlainLoader) == value


def test_a_setting_of_a_run_needs_it_or_one_of_its_repeats():
    assert all_overrides(None, ["a:epochs=2"], ["b", "a-seed1"]) == {"a:epochs": "2"}
    for only in ("b", "b-seed1", "a-seedling"):
        with pytest.raises(ConfigError, match="--set a:epochs has no effect: --only leaves run a out"):
            all_overrides(None, ["a:epochs=2"], [only])
