"""Whether a run is decided before its last epoch, by its settings `stop`; in words, too. No TensorFlow.

All but the time is found in what a checkpoint holds of the epochs, so a resumed run stops after the same epoch as one
that nothing happened to. The time is what the run is billed for.
"""

from __future__ import annotations

import math
import re

from rampline.config import RunConfig
from rampline.record.checkpoints import Progress
from rampline.record.units import write_dollars, write_number_of


def decide(config: RunConfig, progress: Progress, wall_seconds: float) -> str | None:
    """Why a run that has come so far stops, such as `after epoch 7 of 20: target accuracy 0.95 reached`.

    The first epoch is always completed: without one there is no model to keep.

    Args:
        config: the run.
        progress: of the training; what it has of a further epoch counts for nothing.
        wall_seconds: over all attempts, see `RunClock.wall_seconds`.

    Returns:
        `None` for a run that goes on, and after its last epoch.
    """
    if not 0 < progress.epoch < config.epochs:
        return None
    why = _why(config, progress, wall_seconds)
    return f"after epoch {progress.epoch} of {config.epochs}: {why}" if why else None


def stopped_after(why: str) -> int | None:
    """The epoch in what `decide` has said; `None` of other words."""
    found = re.match(r"after epoch (\d+) of ", why)
    return int(found[1]) if found else None


def _why(config: RunConfig, progress: Progress, wall_seconds: float) -> str | None:
    stop, accuracy = config.stop, progress.metrics.get("val_accuracy")
    if stop.target_accuracy is not None and accuracy is not None and accuracy >= stop.target_accuracy:
        return f"target accuracy {stop.target_accuracy:g} reached"
    if stop.patience is not None and progress.epoch - progress.best_loss_epoch >= stop.patience:
        return f"no better validation loss for {write_number_of('epoch', stop.patience)}"
    seconds, limit = time_limit(config)
    return f"limit of {limit} reached" if wall_seconds >= seconds else None


def time_limit(config: RunConfig) -> tuple[float, str]:
    """Wall seconds after which a run stops, and the setting that says so, in words; infinite for no limit."""
    stop, price = config.stop, config.cluster.price_per_hour
    limits = [(math.inf, "")]
    if stop.max_minutes is not None:
        limits.append((60 * stop.max_minutes, write_number_of("minute", stop.max_minutes)))
    if stop.max_cost_usd is not None and price:
        limits.append((3600 * stop.max_cost_usd / price, write_dollars(stop.max_cost_usd)))
    return min(limits)


def describe_stop(config: RunConfig, otherwise: str = "") -> str:
    """When a run stops before its last epoch, such as `at a validation accuracy of 0.95 or after 30 minutes`.

    `otherwise` tells of what else may stop it; without that and without `stop` the text is empty.
    """
    stop = config.stop
    parts = {
        "at a validation accuracy of {:g}": stop.target_accuracy,
        "after {} without a better validation loss": stop.patience and write_number_of("epoch", stop.patience),
        "after {}": stop.max_minutes and write_number_of("minute", stop.max_minutes),
        "at a cost of {}": stop.max_cost_usd and write_dollars(stop.max_cost_usd),
    }
    told = [text.format(value) for text, value in parts.items() if value]
    *first, last = [*told, *filter(None, [otherwise])] or [""]
    return f"{', '.join(first)} or {last}" if first else last
