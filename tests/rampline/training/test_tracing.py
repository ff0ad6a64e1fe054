"""Each compiled function is traced once per run, whatever the size of a batch or of a call."""

import dataclasses

import pytest
import tensorflow as tf
from runs import make_config

from rampline.training.objective import EXAMPLES
from rampline.training.state import make_state
from rampline.training.synchronous import SynchronousEngine
from rampline.training.timings import CACHED, REAL


@pytest.mark.parametrize("name", ["single", "mirrored"])
@pytest.mark.long
def test_a_run_traces_its_functions_once(name, digits):
    strategy = (
        tf.distribute.OneDeviceStrategy("/cpu:0") if name == "single" else tf.distribute.MirroredStrategy(["/cpu:0"])
    )
    config = dataclasses.replace(make_config("single"), steps_per_call="auto")
    engine = SynchronousEngine(
        config=config, dataset=digits, strategy=strategy, state=make_state(config, digits, strategy)
    )
    steps = config.steps_per_epoch(digits.splits["train"])
    assert digits.splits["train"] % config.global_batch_size  # the last batch of an epoch is smaller
    counts = []
    for epoch in range(3):
        counts += [len(done.sums) for done in engine.run_steps(epoch * steps, steps)]
        engine.evaluate("validation")
    assert len(set(counts)) > 1
    # Another split, another pipeline from the middle of an epoch, and the probes.
    engine.evaluate("test")
    list(engine.run_steps(steps + 2, 2))
    size = config.global_batch_size
    for kind in (REAL, CACHED):
        engine.make_probe(kind, size)(3)
    whole, _ = engine._train(engine._iterate(0, engine._order.in_whole_batches(size)), 2 * steps)
    assert set(whole.sums[:, EXAMPLES]) == {size}  # of which no batch is smaller
    compiled = (engine._train_steps, engine._evaluation_steps)
    assert [function.experimental_get_tracing_count() for function in compiled] == [1, 1]
