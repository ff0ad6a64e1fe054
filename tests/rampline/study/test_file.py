"""Studies: the built-in one, what may be in a file, and which runs are kept."""

import pytest

from rampline.config import RunConfig
from rampline.errors import ConfigError
from rampline.study import Study, StudyRun, built_in_studies, load_study

CHAIN = """
name: chain
description: Three runs, each from the one above.
reference: second
base: {epochs: 4, data: {limit: 20}}
runs:
  first: {description: From scratch.}
  second: {set: {model: {weights: "run:first"}, epochs: 2}, published: {train_seconds: 2090, test_accuracy: 0.94}}
  third: {set: {model: {weights: "run:second"}}}
  apart:
"""


def test_a_file_is_read_as_it_is_written(write):
    study = load_study(write(CHAIN))
    assert (study.name, study.reference) == ("chain", "second")
    assert [run.name for run in study.runs] == ["first", "second", "third", "apart"]
    assert [run.config.epochs for run in study.runs] == [4, 2, 4, 4]
    assert [run.starts_from for run in study.runs] == [None, "first", "second", None]
    assert study.run("first").description == "From scratch."
    assert study.run("second").published == {"train_seconds": 2090, "test_accuracy": 0.94}
    assert study.run("apart").description == ""
    assert {run.config.data.limit for run in study.runs} == {20}


def test_what_a_study_is_about_is_read(write):
    study = load_study(
        write("""
            teaches: >
              All
              of it.
            hardware: a GPU
            expected_hours: 2
            published_source: A book.
            prices: {big: 2.5}
            recommend: {deadline_hours: 3.5, accuracy_tolerance: 0.02}
            runs: {a: {published: {speedup: 2, best_val_accuracy: 0.9}}, b: {published: {train_seconds: 1, speedup: 3}}}
        """)
    )
    assert (study.teaches, study.hardware, study.expected_hours) == ("All of it.", "a GPU", "2")
    assert (study.published_source, study.prices) == ("A book.", {"big": 2.5})
    assert (study.deadline_hours, study.accuracy_tolerance) == (3.5, 0.02)
    assert study.published_metrics == ("speedup", "best_val_accuracy", "train_seconds")


def test_what_is_left_out_is_empty(write):
    study = load_study(write("recommend: {deadline_hours: null}\nruns: {a: {}}"))
    assert (study.teaches, study.hardware, study.expected_hours, study.published_source) == ("", "", "", "")
    assert (study.prices, study.deadline_hours, study.accuracy_tolerance) == ({}, None, 0.01)


SIZES = "train_examples: 100\nbase: {data: {limit: 10}}\nruns: {a: {}, b: {train_examples: 200}}"


@pytest.mark.parametrize(
    "overrides, sizes",
    [
        ({"epochs": "2", "data.image_size": "16"}, [100, 200]),
        ({"data.limit": "10"}, [None, None]),
        ({"data.source": "tfds:mnist"}, [None, None]),
        ({"data.validation_fraction": "0.2"}, [None, None]),
    ],
)
def test_the_number_of_training_images_holds_for_the_data_of_the_file(write, overrides, sizes):
    study = load_study(write(SIZES), overrides=overrides)
    assert [run.train_examples for run in study.runs] == sizes


def test_a_file_without_a_name_is_named_after_itself(write):
    study = load_study(write("description:\nname:\nreference:\nruns: {only: {}}"))
    assert (study.name, study.description, study.reference) == ("my-study", "", "only")


def test_an_override_of_one_run_goes_over_that_for_all(write):
    study = load_study(write(CHAIN), overrides={"first:epochs": "3", "epochs": "9", "batch.size": "16"})
    assert [(run.config.epochs, run.config.batch.size) for run in study.runs] == [(3, 16), *[(9, 16)] * 3]


def test_an_override_of_a_run_that_does_not_exist_is_refused(write):
    with pytest.raises(ConfigError, match="--set nosuch:epochs is not allowed: there is no run 'nosuch': name one of"):
        load_study(write(CHAIN), overrides={"nosuch:epochs": "3"})


@pytest.mark.parametrize("name, read", [("1", "1"), ("null", "None"), ("no", "False")])
def test_a_run_whose_name_is_no_text_is_refused_with_an_override_for_another(write, name, read):
    with pytest.raises(ConfigError, match=f"run name {read} is not allowed: it must be a text: put it into"):
        load_study(write(f"runs: {{{name}: {{}}}}"), overrides={"nosuch:epochs": "3"})


def test_only_keeps_the_order_of_the_study(write):
    path = write(CHAIN)
    assert [run.name for run in load_study(path, only=["apart", "first"]).runs] == ["first", "apart"]
    assert len(load_study(path, only=[]).runs) == 4


def test_only_must_keep_what_a_run_starts_from(write, refusal):
    message = "my-study.yaml: run third starts from second: add --only second"
    assert refusal(write(CHAIN), only=["third"]) == message


def test_only_names_a_run_that_is_there(write, refusal):
    message = "my-study.yaml: study chain has no run 'fourth': it has first, second, third, apart"
    assert refusal(write(CHAIN), only=["fourth"]) == message


@pytest.mark.parametrize("name", ["nothing", "/tmp", "no/such.yaml", "../digits", "", "a\0b.yaml"])
def test_a_study_that_is_not_there(refusal, name):
    known = ", ".join(built_in_studies())
    assert refusal(name) == f"no study {name!r}: name one of {known}, or give the path of a .yaml file"


def test_only_yaml_files_are_studies(write, refusal):
    assert refusal(write(CHAIN, "study.txt")).startswith("no study ")


STUDY_KEYS = (
    "name, description, teaches, hardware, expected_hours, published_source, prices, reference, recommend, "
    "train_examples, base, runs, grid"
)
WRONG = {
    "a list": ("- epochs: 3\n", "[{'epochs': 3}] is not allowed: it must be a mapping of keys"),
    "empty": ("", "None is not allowed: it must be a mapping of keys"),
    "no runs": ("name: x", "runs is missing: it must map the name of each run to its settings"),
    "empty runs": ("runs: {}", "runs is missing: it must map the name of each run to its settings"),
    "an unknown key": ("run: {a: {}}", "unknown key run: did you mean runs?"),
    "a numeric key": ("1: 2", f"unknown key 1: known: {STUDY_KEYS}"),
    "an unknown run key": (
        "runs: {a: {epochs: 3}}",
        "run a: unknown key epochs: known: description, published, train_examples, set",
    ),
    "settings are a number": ("runs: {a: 5}", "run a: 5 is not allowed: it must be a mapping of keys"),
    "set is a list": (
        "runs: {a: {set: [1]}}",
        "run a: set=[1] is not allowed: it must be a mapping of keys, such as set: {…}",
    ),
    "a wrong value": (
        "runs: {a: {set: {epochs: 0}}}",
        "run a: epochs=0 is not allowed: it must be a whole number of at least 1",
    ),
    "published is a number": (
        "runs: {a: {published: 5}}",
        "run a: published=5 is not allowed: it must be a mapping of keys, such as published: {…}",
    ),
    "a published text": (
        "runs: {a: {published: {accuracy: high}}}",
        "run a: published.accuracy='high' is not allowed: it must be a number at least 0",
    ),
    "no training images": (
        "runs: {a: {train_examples: 0}}",
        "run a: train_examples=0 is not allowed: it must be a whole number of at least 1 or null",
    ),
    "a text that is a list": ("teaches: [a]\nruns: {a: {}}", "teaches=['a'] is not allowed: it must be a text"),
    "an unknown recommend key": (
        "recommend: {hours: 3}\nruns: {a: {}}",
        "unknown key recommend.hours: known: recommend.deadline_hours, recommend.accuracy_tolerance",
    ),
    "no time": (
        "recommend: {deadline_hours: 0}\nruns: {a: {}}",
        "recommend.deadline_hours=0 is not allowed: it must be a number greater than 0 or null",
    ),
    "a tolerance in per cent": (
        "recommend: {accuracy_tolerance: 5}\nruns: {a: {}}",
        "recommend.accuracy_tolerance=5 is not allowed: it must be a number at least 0 and at most 1",
    ),
    "a reference that is not there": ("reference: b\nruns: {a: {}}", "study my-study has no run 'b': it has a"),
    "a run given twice": ("runs:\n  a: {}\n  b: {}\n  a: {}\n", "line 4: key a is given twice"),
    "a setting given twice": ("runs:\n  a: {set: {seed: 1, seed: 2}}\n", "line 2: key seed is given twice"),
    "starts from itself": (
        "runs: {a: {set: {model: {weights: 'run:a'}}}}",
        "run a: model.weights=run:a must name a run above it",
    ),
    "starts from a later run": (
        "runs: {a: {set: {model: {weights: 'run:b'}}}, b: {}}",
        "run a: model.weights=run:b must name a run above it",
    ),
    "starts from no run": (
        "runs: {a: {set: {model: {weights: 'run:'}}}}",
        "run a: model.weights=run: must name a run above it",
    ),
}


@pytest.mark.parametrize("content, message", WRONG.values(), ids=WRONG)
def test_a_wrong_study_is_one_clear_line(write, refusal, content, message):
    assert refusal(write(content)) == f"my-study.yaml: {message}"


@pytest.mark.parametrize("name", ["Upper", "a/b", "..", "-a", "ä", "''"])
def test_a_run_has_a_name_that_can_be_a_folder(write, refusal, name):
    message = refusal(write(f"runs: {{{name}: {{}}}}"))
    assert "is not allowed: it must be lower-case letters, digits, - and _, at most 100" in message


@pytest.mark.parametrize("name", ["evaluation", "explain", "checkpoints", "heartbeats"])
def test_no_run_has_the_name_of_a_folder_that_jobs_and_stores_make_their_own(write, refusal, name):
    # A study may.
    message = refusal(write(f"name: {name}\nruns: {{{name}: {{}}}}"))
    allowed = "none of evaluation, explain, checkpoints, heartbeats, which are the names of other folders"
    assert message == f"my-study.yaml: run name {name!r} is not allowed: it must be {allowed}"
    assert load_study(write(f"name: {name}\nruns: {{{name}-a: {{}}}}")).name == name


def test_a_study_has_a_name_that_can_be_a_folder(write, refusal):
    message = (
        "my-study.yaml: name 'My Study' is not allowed: it must be lower-case letters, digits, - and _, at most 100"
    )
    assert refusal(write("name: My Study\nruns: {a: {}}")) == message


def test_merged_anchors_are_no_repeated_keys(write):
    content = """
        base: &base {epochs: 2, seed: 1}
        runs:
          a: {set: &a {<<: *base, seed: 3}}
          b: {set: {<<: *a, seed: 4}}
    """
    assert [(run.config.epochs, run.config.seed) for run in load_study(write(content)).runs] == [(2, 3), (2, 4)]


def test_only_the_study_file_names_code_to_import(write, refusal):
    path = write("base: {model: {name: 'mine:net'}}\nruns: {a: {}}")
    assert load_study(path).runs[0].config.model.name == "mine:net"
    assert load_study(path, overrides={"model.name": "mine:net"}).runs[0].config.model.name == "mine:net"
    message = "run a: model.name='os:system' is not allowed in --set: code is imported only if the study file names it"
    assert refusal(path, overrides={"model.name": "os:system"}) == f"my-study.yaml: {message}"
    assert load_study(path, overrides={"model.name": "convnet"}).runs[0].config.model.name == "convnet"


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/x", "a/b", "..", ""])
def test_names_that_were_tampered_with_name_no_folder(name):
    with pytest.raises(ConfigError, match=r"run name .* is not allowed"):
        StudyRun(name=name, config=RunConfig())
    with pytest.raises(ConfigError, match=r"name .* is not allowed"):
        Study(name=name, description="", reference="a", runs=(StudyRun(name="a", config=RunConfig()),))
