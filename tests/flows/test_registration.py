"""Which flows there are; tests/golden/forms.txt has their names and parameters."""

from typing import get_args


def test_every_strategy_has_a_stage():
    from rampline.config.run_config import Strategy
    from rampline.flows.study import STAGES
    from rampline.tasks.form import FLOW_OF_STRATEGY

    assert sorted(FLOW_OF_STRATEGY) == sorted(get_args(Strategy))
    assert set(FLOW_OF_STRATEGY.values()) == set(STAGES)
