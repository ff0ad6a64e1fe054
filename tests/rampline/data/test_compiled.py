"""Graphs from functions as they are written: the loop, and that nothing is rewritten."""

import pytest
import tensorflow as tf

from rampline.data.compiled import as_written, compiled, repeat


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_repeat_passes_the_state_from_step_to_step(steps, dtype):
    def run(steps):
        def once(i, total, seen):
            return total * 2 + i, seen.write(tf.cast(i, tf.int32), i)

        seen = tf.TensorArray(dtype, size=tf.cast(steps, tf.int32), element_shape=())
        total, seen = repeat(steps, once, tf.ones((), dtype), seen)
        return total, seen.stack()

    total, seen = compiled(run)(tf.constant(steps, dtype))
    expected = 1
    for i in range(steps):
        expected = expected * 2 + i
    assert int(total) == expected
    assert seen.numpy().tolist() == list(range(steps))
    assert seen.dtype == dtype


def test_steps_with_side_effects_come_one_after_the_other():
    variable = tf.Variable(1.0)
    numbers = iter(tf.data.Dataset.counter(1))

    def run(steps):
        def once(i, numbers_as_text):
            number = tf.cast(next(numbers), tf.float32)
            variable.assign(variable * number + 1.0)
            return (numbers_as_text + tf.strings.as_string(number, precision=0),)

        return repeat(steps, once, tf.constant(""))[0]

    text = compiled(run)(tf.constant(9))
    expected = 1.0
    for number in range(1, 10):
        expected = expected * number + 1.0
    assert text.numpy() == b"123456789"
    assert variable.numpy() == expected


def test_the_number_of_steps_does_not_trace_again():
    traces = []

    def run(steps):
        traces.append(1)
        return repeat(steps, lambda i, total: (total + i,), tf.constant(0))[0]

    function = compiled(run)
    assert [int(function(tf.constant(steps))) for steps in (1, 5, 10)] == [0, 10, 45]
    assert len(traces) == 1


def depends_on_a_value(value):
    """What only AutoGraph could put into a graph."""
    return value + 1 if value > 0 else value


def test_a_compiled_function_is_not_rewritten():
    assert int(tf.function(depends_on_a_value)(tf.constant(1))) == 2
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        compiled(depends_on_a_value)(tf.constant(1))


def test_nor_is_what_it_gives_to_tf_data():
    def first(numbers):
        return numbers.map(depends_on_a_value).reduce(tf.constant(0), lambda _, value: value)

    numbers = tf.data.Dataset.from_tensors(1)
    assert int(first(numbers)) == 2
    for function in (as_written(first), compiled(first)):
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
            function(numbers)
