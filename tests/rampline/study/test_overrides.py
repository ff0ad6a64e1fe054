"""The file of settings: what is written is what `rampline run --overrides` reads."""

from pathlib import Path

import pytest

from rampline.cli.arguments import all_overrides
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


def test_a_setting_of_a_run_needs_it_or_one_of_its_repeats():
    assert all_overrides(None, ["a:epochs=2"], ["b", "a-seed1"]) == {"a:epochs": "2"}
    for only in ("b", "b-seed1", "a-seedling"):
        with pytest.raises(ConfigError, match="--set a:epochs has no effect: --only leaves run a out"):
            all_overrides(None, ["a:epochs=2"], [only])
