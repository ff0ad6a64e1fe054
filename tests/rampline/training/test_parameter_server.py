"""Parameter server: where the variables are, that no update is lost, and what the chief counts."""

import dataclasses

import numpy as np
import pytest
from role_functions import RunRoles, overflow_once, train_steps
from runs import make_config

from rampline.data.dataset import PreparedDataset

STEPS = 25


def test_variables_live_on_the_ps_and_every_step_is_counted(run_roles: RunRoles, digits: PreparedDataset) -> None:
    config = make_config("parameter_server", workers=2, parameter_servers=1)
    (told,) = run_roles(train_steps, config, STEPS)
    assert all("/job:ps/" in device for device in told["devices"])
    assert int(told["step"]) == STEPS
    assert int(told["iterations"]) == STEPS  # Keras' own counter would lose some, see make_iterations_atomic
    assert len(told["losses"]) == STEPS
    assert told["losses"][-5:].mean() < told["losses"][:5].mean()
    assert told["evaluated"][2] == digits.splits["validation"]


@pytest.mark.long
def test_an_overflow_skips_the_step_of_its_worker_and_halves_the_scale(run_roles: RunRoles) -> None:
    config = make_config("parameter_server", model="small_models:smooth", workers=2, parameter_servers=1)
    (told,) = run_roles(overflow_once, dataclasses.replace(config, precision="mixed_float16"))
    assert told["updates"][5:8, 0].tolist() == [6, 6, 7]
    assert np.log2(told["scale"][:, 0]).tolist() == [10] * 3 + [11] * 3 + [10] * 4 + [11]
    assert (told["weights"][6] == told["weights"][5]).all()
    assert np.isfinite(told["weights"]).all()
