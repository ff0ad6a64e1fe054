"""The random numbers of layers (Dropout, noise, augmentation): each replica draws its own, exactly so in every launch.

Keras keeps a seed and a count of draws for each layer. Every replica has a copy, and all copies are equal: the replicas
would all draw the same. The copies stay equal, so that a checkpoint fits any number of replicas; the number of the
replica is added when it draws. With micro-batches, of which the replicas may compute different numbers, the copies are
set to one state at the beginning of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from rampline.pipeline.augment import seed_generators

# The golden ratio's share of TensorFlow's 2**31 seeds: replicas are far from each other, and from a user's small seeds.
_SEEDS_APART = 1_327_217_885
# Where a step has a state of its own, its draws are counted from here times the step.
_DRAWS_PER_STEP = 1024


def draw_per_replica(model: keras.Model) -> None:
    """Let each replica draw by (seed, draws so far, replica); the first draws what one device would."""
    for generator in seed_generators(model):
        generator.next = partial(_next_of_replica, generator.next)


def _next_of_replica(next_seed: Callable[..., tf.Tensor], *args: Any, **kwargs: Any) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return of_replica(next_seed(*args, **kwargs), context.replica_id_in_sync_group if context else 0)


def seeds_of(model: keras.Model) -> list[keras.Variable]:
    """The (2,) states of the model's generators."""
    return [generator.state for generator in seed_generators(model)]


def begin_step(seeds: Sequence[keras.Variable], step: tf.Variable) -> None:
    """Set the generators to where they draw from in that step, see `seed_of_step`."""
    for seed in seeds:
        seed.assign(seed_of_step(seed.value, step))


def of_replica(state: tf.Tensor, replica: tf.Tensor | int) -> tf.Tensor:
    """The (2,) state from which a replica draws, where the generators of all replicas have `state`."""
    replica = tf.cast(replica, state.dtype)
    return state + tf.stack([replica * _SEEDS_APART, tf.zeros_like(replica)])


def seed_of_step(state: tf.Tensor, step: tf.Tensor | tf.Variable) -> tf.Tensor:
    """The (2,) state of a generator at the beginning of a step, whoever carries it out.

    Parameter-server workers that read the count of draws at once would draw the same numbers for different steps;
    replicas that compute different numbers of micro-batches would each have a count of their own.
    """
    return tf.stack([state[0], tf.cast(step, state.dtype) * _DRAWS_PER_STEP])
