"""Grids: which runs they make, with which settings, and what is refused."""

import pytest

from rampline.errors import ConfigError
from rampline.study import load_study

GRID = """
train_examples: 70
base: {epochs: 3, data: {limit: 10}}
grid:
  sweep:
    name: "{gpus}-gpu-{batch.size}"
    description: "{batch.size} images on {gpus}."
    set: {seed: 4, data: {cache: disk}}
    over:
      gpus:
        1: {strategy: single}
        2: {strategy: mirrored, cluster: {replicas: 2}}
      batch.size: [64, 128]
    published: {2-gpu-64: {speedup: 1.6}}
    train_examples: 50
  plain:
    over: {precision: [float32, mixed_float16], xla: [true, false]}
runs:
  first: {}
"""


def test_a_grid_makes_every_combination_after_the_runs(write):
    study = load_study(write(GRID))
    assert [run.name for run in study.runs] == [
        "first",
        *("1-gpu-64", "1-gpu-128", "2-gpu-64", "2-gpu-128"),
        *("plain-float32-true", "plain-float32-false", "plain-mixed_float16-true", "plain-mixed_float16-false"),
    ]
    assert study.reference == "first"


def test_settings_are_laid_over_base_then_set_then_the_axes(write):
    study = load_study(write(GRID))
    run = study.run("2-gpu-128")
    assert (run.config.strategy, run.config.replicas, run.config.batch.size) == ("mirrored", 2, 128)
    assert (run.config.epochs, run.config.seed, run.config.data.limit, run.config.data.cache) == (3, 4, 10, "disk")
    assert (run.description, run.train_examples, run.published) == ("128 images on 2.", 50, {})
    assert study.run("2-gpu-64").published == {"speedup": 1.6}
    plain = study.run("plain-mixed_float16-true")
    assert (plain.config.precision, plain.config.xla, plain.config.seed) == ("mixed_float16", True, 0)
    assert (plain.description, plain.train_examples) == ("", 70)


def test_runs_of_a_grid_are_kept_and_set_as_others_are(write):
    study = load_study(write(GRID), only=["1-gpu-128", "first"], overrides={"epochs": "9"})
    assert [(run.name, run.config.epochs, run.config.batch.size) for run in study.runs] == [
        ("first", 9, 64),
        ("1-gpu-128", 9, 128),
    ]


def test_a_study_may_have_grids_only(write):
    study = load_study(write("grid: {g: {over: {seed: [1, 2, 3]}}}"))
    assert (study.reference, [run.config.seed for run in study.runs]) == ("g-1", [1, 2, 3])


def test_a_grid_may_start_from_a_run(write):
    content = "runs: {a: {}}\ngrid: {g: {set: {model: {weights: 'run:a'}}, over: {seed: [1, 2]}}}"
    assert [run.starts_from for run in load_study(write(content)).runs] == [None, "a", "a"]


def test_a_grid_of_a_file_names_code_to_import(write):
    path = write("grid: {g: {over: {net: {a: {model: {name: 'mine:a'}}, b: {model: {name: 'mine:b'}}}}}}")
    assert [run.config.model.name for run in load_study(path).runs] == ["mine:a", "mine:b"]
    with pytest.raises(ConfigError, match=r"run g-b: model\.name='mine:a' is not allowed in --set"):
        load_study(path, overrides={"model.name": "mine:a"})


WRONG = {
    "a number": ("grid: 5", "grid=5 is not allowed: it must be a mapping of keys, such as grid: {…}"),
    "its settings": ("grid: {g: 5}", "grid g: 5 is not allowed: it must be a mapping of keys"),
    "an unknown key": (
        "grid: {g: {axes: {}}}",
        "grid g: unknown key axes: known: over, search, name, description, set, published, train_examples",
    ),
    "no axes": ("grid: {g: {}}", "grid g: over is missing: it must map each axis to its values"),
    "axes in a list": ("grid: {g: {over: [seed]}}", "grid g: over is missing: it must map each axis to its values"),
    "no values": (
        "grid: {g: {over: {seed: []}}}",
        "grid g: over.seed must be settings by label, or a list of values of a key, not []",
    ),
    "one value": (
        "grid: {g: {over: {seed: 3}}}",
        "grid g: over.seed must be settings by label, or a list of values of a key, not 3",
    ),
    "a key that is not there": (
        "grid: {g: {over: {batch.sizes: [1]}}}",
        "grid g: unknown key batch.sizes: did you mean batch.size?",
    ),
    "a list of a name": (
        "grid: {g: {over: {zzz: [1]}}}",
        "grid g: unknown key zzz: a list is for a key, such as batch.size",
    ),
    "a value that is not allowed": (
        "grid: {g: {over: {batch.size: [0]}}}",
        "run g-0: batch.size=0 is not allowed: it must be a whole number of at least 1",
    ),
    "settings that are no settings": (
        "grid: {g: {over: {gpus: {1: 5}}}}",
        "grid g: over.gpus.1=5 is not allowed: it must be a mapping of keys",
    ),
    "a value twice": ("grid: {g: {over: {seed: [1, 1]}}}", "grid g: over.seed has a value twice: 1, 1"),
    "a label twice": (
        "grid: {g: {over: {gpus: {1: {}, '1': {}}}}}",
        "line 1: key 1 is given twice",
    ),
    "no such axis in the name": (
        "grid: {g: {name: 'run-{gpu}', over: {gpus: {1: {}}}}}",
        "grid g: {gpu} is no axis: there is {gpus}",
    ),
    "one name for two": (
        "grid: {g: {name: 'run-{seed}', over: {seed: [1], batch.size: [2, 3]}}}",
        "grid g: it makes two runs run-1: its name must hold every axis, such as {seed}-{batch.size}",
    ),
    "a name that is no folder": (
        "grid: {g: {over: {model.name: [VGG16]}}, h: {over: {learning_rate.peak: [0.1]}}}",
        "run name 'h-0.1' is not allowed: it must be lower-case letters, digits, - and _, at most 100",
    ),
    "the name of a run": (
        "runs: {g-1: {}}\ngrid: {g: {over: {seed: [1]}}}",
        "grid g: there is another run g-1: give the grid a name that tells them apart",
    ),
    "the name of another grid's run": (
        "grid: {g: {over: {seed: [1]}}, h: {name: 'g-{seed}', over: {seed: [1]}}}",
        "grid h: there is another run g-1: give the grid a name that tells them apart",
    ),
    "published for another run": (
        "grid: {g: {over: {seed: [1, 2]}, published: {g-3: {speedup: 2}}}}",
        "grid g: published names g-3, which it does not make: it makes g-1, g-2",
    ),
    "a published text": (
        "grid: {g: {over: {seed: [1]}, published: {g-1: {speedup: high}}}}",
        "run g-1: published.speedup='high' is not allowed: it must be a number at least 0",
    ),
    "more runs than anybody trains": (
        "grid: {g: {over: {"
        + ", ".join(f"{axis}: {{{', '.join(f'{label}: {{}}' for label in range(40))}}}" for axis in "abcdefgh")
        + "}}}",
        "grid g: it makes 6553600000000 runs: at most 1000 are allowed",
    ),
}


@pytest.mark.parametrize("content, message", WRONG.values(), ids=WRONG)
def test_a_wrong_grid_is_one_clear_line(write, content, message):
    with pytest.raises(ConfigError) as failure:
        load_study(write(content))
    assert str(failure.value) == f"my-study.yaml: {message}"
