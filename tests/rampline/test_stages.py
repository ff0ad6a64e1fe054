import pytest

from rampline.errors import ConfigError
from rampline.stages import datasets_of, plan_stage, with_values
from rampline.study import load_study


def test_a_run_is_trained_after_what_it_starts_from():
    assert plan_stage("finetune", "digits", "mirrored-ramp", {}) == ["baseline", "mirrored-ramp"]
    assert plan_stage("cluster", "digits", "parameter-server", {}) == ["parameter-server"]


def test_a_run_of_another_strategy_is_refused():
    with pytest.raises(ConfigError, match="has strategy mirrored: the flow finetune trains it, not baseline"):
        plan_stage("baseline", "digits", "mirrored-ramp", {})


def test_equal_data_is_prepared_once():
    assert len(datasets_of(load_study("digits"))) == 1


def test_values_that_are_none_leave_the_study_as_it_is():
    assert with_values({"seed": "1"}, epochs=3, precision=None) == {"seed": "1", "epochs": "3"}
