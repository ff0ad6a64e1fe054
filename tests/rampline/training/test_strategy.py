"""What a role sets up of TensorFlow before it trains."""

import pytest
from runs import MakeRun, make_config

from rampline.jobs.supervisor import supervise


def test_deterministic_operations_train_the_same_and_their_input_is_still_timed(make_run: MakeRun) -> None:
    """TensorFlow refuses its own clock among them, and adds in another order than without, also on the CPU."""

    def train(model: str, **changes: object) -> list[dict[str, float]]:
        directory = make_run(make_config("single", model=f"small_models:{model}"), epochs=2, **changes)
        supervise(directory, on_event=lambda event: None, log=print)
        return [event["metrics"] for event in directory.read_events("epoch")]

    deterministic, plain = train("among_deterministic_operations", deterministic=True), train("smooth")
    for ours, theirs in zip(deterministic, plain, strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-4)
        assert 0 < ours["input_wait_fraction"] < 0.9
