"""Names and parameters of the flows: what deployments, the CLI and people's scripts call."""

import importlib
import inspect
from typing import get_args

import pytest
from prefect import Flow

PARAMETERS = {
    "prepare": ["study", "only", "overrides"],
    "baseline": ["study", "run", "engine", "epochs", "precision", "launcher", "overrides"],
    "finetune": ["study", "run", "engine", "replicas", "epochs", "precision", "launcher", "overrides"],
    "cluster": [
        *("study", "run", "workers", "parameter_servers", "epochs", "precision", "launcher", "overrides"),
    ],
    "evaluate": ["study", "execution", "runs"],
    "study": [
        *("study", "only", "strategy", "engine", "epochs", "precision", "launcher"),
        *("overrides", "approve_cost_above", "execution"),
    ],
    "predict": ["study", "images", "output", "batch_size", "probabilities"],
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_flow_has_its_name_parameters_and_a_story_for_a_name(name):
    flow = getattr(importlib.import_module(f"rampline.flows.{name}"), name)
    assert isinstance(flow, Flow)
    assert flow.name == name
    assert list(inspect.signature(flow.fn).parameters) == PARAMETERS[name]
    assert flow.flow_run_name
    assert flow.description


def test_every_strategy_has_a_stage():
    from rampline.config.run_config import Strategy
    from rampline.flows.study import STAGES
    from rampline.tasks.form import FLOW_OF_STRATEGY

    assert sorted(FLOW_OF_STRATEGY) == sorted(get_args(Strategy))
    assert set(FLOW_OF_STRATEGY.values()) == set(STAGES)
