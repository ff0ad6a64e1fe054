"""TensorFlow's graphs from functions as they are written: without AutoGraph.

AutoGraph rewrites Python's `for` and `if` into TensorFlow's, in a function and in all that it calls. Our few loops are
written as TensorFlow's own (`repeat`). Looking through everything for more took half of the time from a role's start to
its first step (1.5 s, now 0.8), and left a file in the folder for temporary files for each function, because roles end
without Python's exit handlers. Keras does without it too (`do_not_convert` in its trainer): for the layers of a model
nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_written(function: _Function) -> _Function:
    """`function`, which AutoGraph leaves alone with all that it calls, also what it gives to `tf.data`."""
    return tf.autograph.experimental.do_not_convert(function)


def compiled(function: Callable[..., Any], **options: Any) -> tf.types.experimental.GenericFunction:
    """`tf.function(function, **options)`, as it is written."""
    return tf.function(as_written(function), autograph=False, **options)


def repeat(steps: tf.Tensor, body: Callable[..., tuple[Any, ...]], *state: Any, at_once: int = 10) -> tuple[Any, ...]:
    """Call `state = body(i, *state)` for each `i` below the scalar `steps`, in the graph; returns the last state.

    Args:
        steps: scalar, int32 or int64, as `i`.
        body: returns what it is given, in the same shapes and dtypes.
        state: tensors and `tf.TensorArray`, or lists of them; at least one.
        at_once: how many calls may overlap, and hold memory, where the one does not need what the other returns.
    """
    first = tf.zeros((), steps.dtype)
    result = tf.while_loop(
        lambda i, *_: i < steps,
        lambda i, *before: (i + 1, *body(i, *before)),
        (first, *state),
        parallel_iterations=at_once,
    )
    return tuple(result[1:])
