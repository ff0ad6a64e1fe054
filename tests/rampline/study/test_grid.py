"""Grids: which runs they make, with which settings, and what is refused."""

import itertools

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


def test_options_of_two_axes_are_those_of_the_run(write):
    study = load_study(
        write(
            """
            base: {model: {name: MobileNetV2, options: {alpha: 0.35, minimalistic: true}}}
            runs: {plain: {set: {model: {options: {dropout: 0.2}}}}, emptied: {set: {model: {options: {}}}}}
            grid:
              g:
                over:
                  width: {a: {model: {options: {alpha: 0.25}}}, b: {model: {options: {alpha: 0.5}}}}
                  depth: {c: {model: {options: {depth: 1}}}, d: {model: {name: ResNet50, options: {depth: 2}}}}
            """
        )
    )
    assert {run.name: dict(run.config.model.options) for run in study.runs} == {
        "plain": {"alpha": 0.35, "minimalistic": True, "dropout": 0.2},
        "emptied": {},
        "g-a-c": {"alpha": 0.25, "minimalistic": True, "depth": 1},
        "g-a-d": {"alpha": 0.25, "depth": 2},  # no options of MobileNetV2 in ResNet50
        "g-b-c": {"alpha": 0.5, "minimalistic": True, "depth": 1},
        "g-b-d": {"alpha": 0.5, "depth": 2},
    }


def test_runs_of_a_grid_are_kept_and_set_as_others_are(write):
    study = load_study(write(GRID), only=["1-gpu-128", "first"], overrides={"epochs": "9"})
    assert [(run.name, run.config.epochs, run.config.batch.size) for run in study.runs] == [
        ("first", 9, 64),
        ("1-gpu-128", 9, 128),
    ]


def test_a_study_may_have_grids_only(write):
    study = load_study(write("grid: {g: {over: {seed: [1, 2, 3]}}}"))
    assert (study.reference, [run.config.seed for run in study.runs]) == ("g-1", [1, 2, 3])


SAMPLED = """
grid:
  rates:
    samples: {samples}
    set: {{epochs: 27}}
    over:
      learning_rate.peak: {{low: 1.0e-4, high: 1.0e-2, log: true}}
      optimizer.name: [adam, sgd]
      batch.size: {{low: 16, high: 64}}
"""


def test_samples_are_spread_over_the_ranges_and_more_of_them_leave_the_others_as_they_are(write):
    study = load_study(write(SAMPLED.format(samples=12)))
    assert [run.name for run in study.runs] == [f"rates-{number}" for number in range(1, 13)]
    # The first points of a Halton sequence: halves, thirds and fifths of the way.
    first = [
        (run.config.learning_rate.peak, run.config.optimizer.name, run.config.batch.size) for run in study.runs[:3]
    ]
    assert first == [(1e-3, "adam", 26), (3.162e-4, "sgd", 35), (3.162e-3, "adam", 45)]
    assert study.run("rates-2").description == "learning_rate.peak 0.0003162, optimizer.name sgd, batch.size 35"
    peaks = sorted(run.config.learning_rate.peak for run in study.runs)
    assert all(1 < later / earlier < 1e-2**-0.25 for earlier, later in itertools.pairwise(peaks))
    assert sum(run.config.optimizer.name == "sgd" for run in study.runs) in (5, 6, 7)
    fewer = load_study(write(SAMPLED.format(samples=5)))
    assert fewer.runs == study.runs[:5]


def test_a_point_that_comes_twice_is_one_run(write):
    content = "grid: {g: {samples: 50, name: 'g-{sample}-of-{batch.size}', over: {batch.size: {low: 2, high: 4}}}}"
    study = load_study(write(content))
    assert [run.name for run in study.runs] == ["g-1-of-3", "g-2-of-2", "g-3-of-4"]
    assert study.run("g-3-of-4").config.batch.size == 4


def test_a_grid_may_start_from_a_run(write):
    content = "runs: {a: {}}\ngrid: {g: {set: {model: {weights: 'run:a'}}, over: {seed: [1, 2]}}}"
    assert [run.starts_from for run in load_study(write(content)).runs] == [None, "a", "a"]


def test_a_grid_of_a_file_names_code_to_import(write):
    path = write("grid: {g: {over: {net: {a: {model: {name: 'mine:a'}}, b: {model: {name: 'mine:b'}}}}}}")
    assert [run.config.model.name for run in load_study(path).runs] == ["mine:a", "mine:b"]
    with pytest.raises(ConfigError, match=r"run g-b: model\.name='mine:a' is not allowed in --set"):
        load_study(path, overrides={"model.name": "mine:a"})


WRONG = {
    "its settings": ("grid: {g: 5}", "grid g: 5 is not allowed: it must be a mapping of keys"),
    "an unknown key": (
        "grid: {g: {axes: {}}}",
        "grid g: unknown key axes: known: over, samples, search, name, description, set, published, train_examples",
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
        "grid g: unknown key zzz: a list or a range is for a key, such as batch.size",
    ),
    "a value that is not allowed": (
        "grid: {g: {over: {batch.size: [0]}}}",
        "run g-0: batch.size=0 is not allowed: it must be a whole number of at least 1",
    ),
    "settings that are no settings": (
        "grid: {g: {over: {gpus: {1: 5}}}}",
        "grid g: over.gpus.1=5 is not allowed: it must be a mapping of keys",
    ),
    "a range without samples": (
        "grid: {g: {over: {seed: {low: 1, high: 3}}}}",
        "grid g: over.seed is a range: samples must say how many points are sampled",
    ),
    "a range without an end": (
        "grid: {g: {samples: 2, over: {seed: {low: 1}}}}",
        "grid g: over.seed.high=None is not allowed: it must be a number: low and high are the ends of a range",
    ),
    "a range that is none": (
        "grid: {g: {samples: 2, over: {seed: {low: 3, high: 3}}}}",
        "grid g: over.seed.high=3 is not allowed: it must be greater than low, 3",
    ),
    "logarithms of nothing": (
        "grid: {g: {samples: 2, over: {model.dropout: {low: 0.0, high: 0.5, log: true}}}}",
        "grid g: over.model.dropout.low=0.0 is not allowed: it must be greater than 0 with log: true",
    ),
    "a range without bounds": (
        "grid: {g: {samples: 2, over: {learning_rate.peak: {low: -.inf, high: 1.0}}}}",
        "grid g: over.learning_rate.peak.low=-inf is not allowed: "
        "it must be a number: low and high are the ends of a range",
    ),
    "samples of one name": (
        "grid: {g: {name: 'one-{xla}', samples: 3, over: {seed: {low: 1, high: 9}, xla: [false]}}}",
        "grid g: it makes two runs one-false: its name must hold {sample}",
    ),
    "too many samples": (
        "grid: {g: {samples: 1001, over: {seed: {low: 1, high: 3000}}}}",
        "grid g: samples=1001 is not allowed: it must be at most 1000",
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
        "grid g: it makes two runs run-1: its name must hold {seed}-{batch.size}",
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
    "more runs than anybody trains": (
        "grid: {g: {over: {"
        + ", ".join(f"{axis}: {{{', '.join(f'{label}: {{}}' for label in range(40))}}}" for axis in "abcdefgh")
        + "}}}",
        "grid g: it makes 6553600000000 runs: at most 1000 are allowed",
    ),
}


@pytest.mark.parametrize("content, message", WRONG.values(), ids=WRONG)
def test_a_wrong_grid_is_one_clear_line(write, refusal, content, message):
    assert refusal(write(content)) == f"my-study.yaml: {message}"
