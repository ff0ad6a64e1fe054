"""`rampline studies`: the list, and the card of one study."""

import re

from typer.testing import CliRunner

from rampline.cli import app
from rampline.errors import ConfigError
from rampline.study import built_in_studies, load_study


def shown(*arguments: str) -> str:
    """What is printed, with each run of blanks as one."""
    result = CliRunner().invoke(app, ["studies", *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_list_has_every_study_with_the_number_of_its_runs():
    output = CliRunner().invoke(app, ["studies"]).output
    listed = re.findall(r"^ (\w+) +(\d+)  ", output, re.MULTILINE)
    runs = {name: [run for run in load_study(name).runs if not run.repeat_of] for name in built_in_studies()}
    assert listed == [(name, str(len(found))) for name, found in runs.items()]


def test_the_card_of_a_study():
    text = shown("cats_vs_dogs")
    for part in (
        "What a learning-rate ramp does for pretrained weights",
        "hardware One and four K80 GPUs",
        "takes 2 hours on K80 GPUs",
        "n1-standard-16-k80x4: $2.56 per hour",
        "Google Cloud's list of 2023",
        "at most 0.01 below that of the most accurate",
        "published in A public write-up on fine-tuning MobileNetV2",
        "1-gpu-ft (reference) single, fit 1 32 One GPU, constant learning rate.",
        "run elapsed_seconds best_val_accuracy last_val_accuracy",
        "4-gpu-ft-no-pref 1046 0.98",
    ):
        assert part in text
    assert "in 3.5 hours at most" in shown("inaturalist")


def test_the_card_of_a_file_with_nothing_but_a_run(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("runs: {only: {set: {batch: {size: 48}}}}")
    text = shown(str(path))
    assert "only (reference) single 1 48" in text
    for absent in ("teaches", "prices", "published"):
        assert absent not in text


def test_a_study_that_is_not_there():
    result = CliRunner().invoke(app, ["studies", "nothing"])
    assert isinstance(result.exception, ConfigError)
    assert "name one of cassava, cats_vs_dogs, digits" in str(result.exception)
