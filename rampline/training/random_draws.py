"""The random numbers of layers (Dropout, noise, augmentation): each replica draws its own, exactly so in every launch.

Keras keeps a seed and a count of draws for each layer. Every replica has a copy, and all copies are equal: the replicas
would all draw the same. The copies stay equal, so that a checkpoint fits any number of replicas; the number of the
replica is added when it draws.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from rampline.pipeline.augment import seed_generators

# The golden ratio's share of TensorFlow's 2**31 seeds: replicas are far from each other, and from a user's small seeds.
_SEEDS_APART = 1_327_217_885
# A parameter-server worker counts its draws from here times the step.
_DRAWS_PER_STEP = 1024


def draw_per_replica(model: keras.Model) -> None:
    """Let each replica draw by (seed, draws so far, replica); the first draws what one device would."""
    for generator in seed_generators(model):
        _add_replica(generator)


def _add_replica(generator: keras.random.SeedGenerator) -> None:
    next_seed = generator.next

    def next_of_replica(*args: Any, **kwargs: Any) -> tf.Tensor:
        seed, context = next_seed(*args, **kwargs), tf.distribute.get_replica_context()
        return of_replica(seed, context.replica_id_in_sync_group if context else 0)

    generator.next = next_of_replica


def of_replica(state: tf.Tensor, replica: tf.Tensor | int) -> tf.Tensor:
    """The (2,) state from which a replica draws, where the generators of all replicas have `state`."""
    replica = tf.cast(replica, state.dtype)
    return state + tf.stack([replica * _SEEDS_APART, tf.zeros_like(replica)])


def seed_of_step(state: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """The (2,) state of a generator at the beginning of a step, whichever worker carries it out.

    Parameter-server workers that read the count of draws at once would draw the same numbers for different steps.
    """
    return tf.stack([state[0], tf.cast(step, state.dtype) * _DRAWS_PER_STEP])
