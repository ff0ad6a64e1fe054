"""Real runs that are each held back by one thing, and whether the explanation names it."""

import dataclasses
from pathlib import Path

import pytest
from runs import make_config

from rampline.config import ExplainConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.explain.explanation import Explanation, explain_run
from rampline.explain.replica import measure_replicas
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory, RunIdentity

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]


def explain(config: RunConfig, dataset: PreparedDataset, folder: Path) -> Explanation:
    directory = RunDirectory(folder / "run")
    config = dataclasses.replace(config, explain=ExplainConfig())
    directory.create(config, RunIdentity(study="test", name="run", dataset=str(dataset.directory)))
    supervise(directory, on_event=lambda event: None, log=print)
    measure_replicas([directory], folder / "explain", log=print)
    return explain_run(directory)


@pytest.mark.long
def test_a_slow_decoder_is_found_in_the_input(digits_by_cache: dict[str, PreparedDataset], tmp_path: Path) -> None:
    config = make_config("single", model="bound_models:slow_to_decode", batch=8)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache="none", prefetch="off"))
    found = explain(config, digits_by_cache["none"], tmp_path)
    assert found.step.input > 8
    assert found.verdict.bound == "input"
    assert found.verdict.share > 0.7
    # The pipeline alone is the slower part by far: working ahead does not help it.
    assert "data.cache=memory would give " in found.verdict.sentence
    assert found.verdict.gain > 3


@pytest.mark.long
def test_a_large_all_reduce_is_found_in_the_sync(digits: PreparedDataset, tmp_path: Path) -> None:
    config = make_config("multi_worker", model="bound_models:many_weights", batch=4, workers=2)
    found = explain(dataclasses.replace(config, epochs=1), digits, tmp_path)
    assert found.verdict.bound == "sync"
    assert "all-reduce" in found.verdict.sentence
    assert found.ceiling_images_per_second is not None
    assert found.ceiling_images_per_second > 1000 * 4 / found.step.total


@pytest.mark.long
def test_a_tiny_network_is_found_in_the_overhead(digits: PreparedDataset, tmp_path: Path) -> None:
    config = make_config("single", model="bound_models:tiny", batch=8)
    found = explain(dataclasses.replace(config, steps_per_call=1), digits, tmp_path)
    assert found.verdict.bound == "overhead"
    assert "steps_per_call=auto or a larger batch would give" in found.verdict.sentence
