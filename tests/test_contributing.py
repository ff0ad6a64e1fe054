"""CONTRIBUTING.md says where one adds things: one of each is added by its words in a copy, and works there.

An alert, a launcher and a metric have tests of their own: `test_automations.py`, `test_job.py`, `test_new_metric.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_prefect import PrefectServer

ROOT = Path(__file__).parents[1]
# Heading of CONTRIBUTING.md, file, the line before (empty: a new file), what is added.
ADDITIONS = [
    (
        "Adding a setting",
        "rampline/config/sections.py",
        '    """Examples per step."""',
        '\n    repeats: Count = setting(1, "how often each batch is used", le=4)',
    ),
    (
        "Adding a study key",
        "rampline/study/definition.py",
        '    """What a study has besides its runs."""',
        '\n    owner: Words = setting("", "who asks for it")',
    ),
    (
        "Adding a schedule, an optimizer or an augmentation",
        "rampline/config/learning_rate.py",
        "SCHEDULES = {",
        '    "falling": Schedule(rate=lambda config, epoch: config.peak_learning_rate / (1.0 + epoch),\n'
        '        words=lambda config: f"{config.peak_learning_rate:g}, falling", about="peak / (1 + epoch)"),',
    ),
    (
        "Adding a schedule, an optimizer or an augmentation",
        "rampline/config/choices.py",
        "OPTIMIZERS = {",
        '    "plain": Choice(about="gradient descent", at="rampline.plain:make_plain"),',
    ),
    (
        "Adding a schedule, an optimizer or an augmentation",
        "rampline/config/choices.py",
        "AUGMENTATIONS = {",
        '    "negative": Choice(about="colours turned over", at="rampline.plain:turn_over"),',
    ),
    (
        "Adding a schedule, an optimizer or an augmentation",
        "rampline/plain.py",
        "",
        "import keras\n\n\n"
        "def make_plain(config, learning_rate):\n    return keras.optimizers.SGD(learning_rate)\n\n\n"
        "def turn_over(images, draws):\n    return 255 - images\n",
    ),
    (
        "Adding a model",
        "rampline/config/choices.py",
        "MODELS = {",
        '    "one_layer": Choice(about="a dense layer", at="rampline.training.models:one_layer"),',
    ),
    (
        "Adding a model",
        "rampline/training/models.py",
        "ImageShape = tuple[int, int, int]",
        "\n\ndef one_layer(image_shape, classes):\n"
        "    images = keras.Input(image_shape, dtype='uint8')\n"
        "    pixels = keras.layers.Rescaling(1 / 255)(images)\n"
        "    logits = keras.layers.Dense(classes, dtype=keras.config.floatx())(keras.layers.Flatten()(pixels))\n"
        "    return keras.Model(images, logits)\n",
    ),
    (
        "Adding a data source",
        "rampline/config/choices.py",
        "SOURCES = {",
        '    "greys": Choice(about="grey squares", at="rampline.data.sources.greys"),',
    ),
    (
        "Adding a data source",
        "rampline/data/sources/greys.py",
        "",
        "from functools import partial\n\n"
        "from rampline.data.sources.source import Example, Source, SourceSplit\n\n\n"
        "def directory_name(config):\n    return config.source\n\n\n"
        "def stat_fingerprint(config, tfds_directory):\n    return 'greys-1'\n\n\n"
        "def open_source(config, tfds_directory, *, for_training=True, tell=None):\n"
        "    def examples(count):\n"
        "        return (Example(name=str(i), label=i % 2, read=partial(read, i % 2)) for i in range(count))\n\n"
        "    sizes = {'train': 40, 'test': 8}\n"
        "    splits = {split: SourceSplit(examples=n, iterate=partial(examples, n)) for split, n in sizes.items()}\n"
        "    return Source(class_names=('black', 'white'), channels=1, splits=splits, stat_fingerprint='greys-1')\n\n\n"
        "def read(label):\n"
        "    import tensorflow as tf\n\n"
        "    return tf.io.encode_png(tf.fill((8, 8, 1), tf.cast(255 * label, tf.uint8))).numpy()\n",
    ),
    (
        "Adding a report section",
        "rampline/comparison/report.py",
        "    after = [",
        "        Section(id='greeting', title='Greeting', sentences=(f'Hello from {comparison.study}.',)),",
    ),
]
STUDY = """
owner: somebody
reference: one
base:
  epochs: 3
  data: {source: greys, image_size: 8, augment: negative}
  model: {name: one_layer}
  batch: {size: 8, repeats: 2}
  optimizer: {name: plain}
  learning_rate: {schedule: falling, peak: 0.5}
  explain: {steps: 0}
runs:
  one: {}
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one of each."""
    folder = tmp_path_factory.mktemp("scratch")
    shutil.copytree(ROOT / "rampline", folder / "rampline", ignore=shutil.ignore_patterns("__pycache__"))
    for _, name, before, text in ADDITIONS:
        file = folder / name
        if not before:
            file.write_text(text)
            continue
        content = file.read_text()
        assert content.count(f"{before}\n") == 1, f"{name} has no single line: {before}"
        file.write_text(content.replace(f"{before}\n", f"{before}\n{text}\n"))
    (folder / "own.yaml").write_text(STUDY)
    return folder


def rampline(scratch: Path, *commands: str, **prefect: str) -> str:
    """What commands of the copy print, one after the other in a process."""
    code = (
        "import sys; from rampline.cli import main\n"
        "for words in sys.argv[1:]:\n    sys.argv[1:] = words.split()\n    assert main() == 0"
    )
    environment = {**os.environ, "PYTHONPATH": str(scratch), "RAMPLINE_HOME": str(scratch / "home"), "COLUMNS": "200"}
    environment |= prefect
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *commands],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(scratch: Path, prefect_server: PrefectServer) -> Path:
    """The folder of the study's run; `rampline run` has trained it."""
    rampline(scratch, "run own.yaml", **prefect_server.prefect)
    return next(scratch.glob("home/runs/own/*/one"))


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def test_every_file_stands_in_its_section() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    sections = {part.splitlines()[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}
    for heading, name, before, _ in ADDITIONS:
        if before:
            assert f"`{name}`" in sections[heading], f"{heading} does not name {name}"


def test_they_are_in_the_schema_and_the_plan_has_the_schedule_in_its_words(scratch: Path) -> None:
    said = rampline(scratch, "studies --schema", "plan own.yaml")
    _, end = json.JSONDecoder().raw_decode(said)
    names = "repeats", "owner", "falling", "plain", "negative", "one_layer", "greys"
    for text in ("how often each batch is used", *names):
        assert f'"{text}"' in said[:end]
    assert "falling: 0.5, falling" in said[end:]


@pytest.mark.long
def test_a_run_is_made_of_them(run: Path) -> None:
    config = read(run / "config.json")
    assert config["batch"]["repeats"] == 2
    assert config["model"]["name"] == "one_layer"
    epochs = [event for line in (run / "events.jsonl").open() if (event := json.loads(line))["event"] == "epoch"]
    # 36 images in batches of 8 are 5 steps an epoch: the last one of the first epoch begins at 0.8.
    rates = [event["metrics"]["learning_rate"] for event in epochs]
    assert rates == pytest.approx([0.5 / 1.8, 0.5 / 2.8, 0.5 / 3.8])
    assert read(run.parent / "execution.json")["study"]["owner"] == "somebody"
    # Trained on negatives and scored on the images themselves: every answer is wrong.
    assert read(run / "evaluation.json")["test_accuracy"] == 0.0
    assert read(run / "evaluation.json")["class_names"] == ["black", "white"]


@pytest.mark.long
def test_the_report_has_the_section(run: Path) -> None:
    (report,) = run.parents[3].glob("reports/own/*/report.html")
    assert "Hello from own." in report.read_text()
