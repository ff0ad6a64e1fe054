"""The parts of a `RunConfig` that decide what is computed: data, model, batch, learning rate, optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from rampline.config.checks import check, check_choice, check_integer, check_number, check_text
from rampline.learning_rate import SCHEDULES

DATA_SOURCES = ("digits", "tfds:NAME", "folder:PATH", "csv:PATH")
CACHES = ("none", "memory", "disk", "auto")
AUGMENTATIONS = ("none", "flip", "crop", "flip_crop")
LR_SCALINGS = ("none", "replicas", "global_batch")
OWN_NETWORKS = ("convnet", "convnet7")
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, how they are prepared, and how they are fed.

    Attributes:
        source: `digits`, `tfds:NAME`, `folder:PATH` or `csv:PATH`.
        manual_dir: directory with the files TFDS would download (air-gapped machines); `tfds:` only.
        image_size: height and width in pixels after resizing.
        channels: 1 (grey) or 3 (RGB); `None` keeps what the source has (folders and CSV: 3).
        limit: at most this many examples per class, in every split; `None` keeps all.
        validation_fraction: share of the training split that becomes validation where the source has none; stratified.
        split_seed: seed of that split and of `limit`; apart from `seed` so that runs with other seeds keep the same
            split.
        max_undecodable_share: preparation fails if a larger share of the files does not decode, in [0, 1].
        cache: `memory` (decoded images in RAM), `disk` (decoded images, read per batch), `none` (decoded every epoch),
            `auto` (the first of these that there is room for when the dataset is prepared).
        prefetch: `auto`, `off`, or the number of batches prepared ahead of the training step.
        augment: `none`, `flip` (left-right), `crop` (random crop after 1/8 padding) or `flip_crop`.
    """

    source: str = "digits"
    manual_dir: str | None = None
    image_size: int = 28
    channels: int | None = None
    limit: int | None = None
    validation_fraction: float = 0.1
    split_seed: int = 0
    max_undecodable_share: float = 0.01
    cache: str = "memory"
    prefetch: str | int = "auto"
    augment: str = "none"

    def __post_init__(self) -> None:
        check_text("data.source", self.source)
        kind, _, rest = self.source.partition(":")
        known = self.source == "digits" or (kind in ("tfds", "folder", "csv") and bool(rest))
        check(known, "data.source", self.source, "one of " + ", ".join(DATA_SOURCES))
        if self.manual_dir is not None:
            check_text("data.manual_dir", self.manual_dir)
            check(kind == "tfds", "data.manual_dir", self.manual_dir, "left out unless data.source is tfds:NAME")
        check_integer("data.image_size", self.image_size, 8)
        is_whole = isinstance(self.channels, int) and not isinstance(self.channels, bool)
        fits = self.channels is None or (is_whole and self.channels in (1, 3))
        check(fits, "data.channels", self.channels, "1, 3 or null")
        if self.limit is not None:
            check_integer("data.limit", self.limit, 1)
        check_number("data.validation_fraction", self.validation_fraction, 0, 1, open_at="minimum maximum")
        check_integer("data.split_seed", self.split_seed, 0)
        check_number("data.max_undecodable_share", self.max_undecodable_share, 0, 1)
        check_choice("data.cache", self.cache, CACHES)
        if isinstance(self.prefetch, str):
            check(self.prefetch in ("auto", "off"), "data.prefetch", self.prefetch, "auto, off or a number of batches")
        else:
            check_integer("data.prefetch", self.prefetch, 1)
        check_choice("data.augment", self.augment, AUGMENTATIONS)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network, and what it starts from.

    Attributes:
        name: `convnet`, `convnet7`, a `keras.applications` name such as `MobileNetV2`, or `package.module:function`
            (called with `input_shape` and `classes`, returns a `keras.Model` from uint8 images to logits).
        weights: `none`, `imagenet`, a weight file or checkpoint path, or `run:NAME` (best checkpoint of that run of the
            study).
        trainable: `all` layers or only the `head` (what follows the pretrained backbone).
        head_units: width of a dense relu layer before the classifier of a `keras.applications` model; 0 for none.
        dropout: share of units dropped before the classifier of a `keras.applications` model, in [0, 1).
    """

    name: str = "convnet"
    weights: str = "none"
    trainable: str = "all"
    head_units: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_text("model.name", self.name)
        check_text("model.weights", self.weights)
        check_choice("model.trainable", self.trainable, ("all", "head"))
        if ":" in self.name or self.name in OWN_NETWORKS:
            only = f"for {self.name}: only a keras.applications model has pretrained weights and a head"
            check(self.trainable == "all", "model.trainable", self.trainable, f"all {only}")
            pretrained = self.weights == "imagenet" or self.weights.endswith(".h5")
            check(not pretrained, "model.weights", self.weights, f"none, a checkpoint or run:NAME {only}")
        check_integer("model.head_units", self.head_units, 0)
        check_number("model.dropout", self.dropout, 0, 1, open_at="maximum")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Examples per step: `size` counts either one replica's share (`replica`) or the sum over replicas (`global`)."""

    size: int = 64
    per: str = "global"

    def __post_init__(self) -> None:
        check_integer("batch.size", self.size, 1)
        check_choice("batch.per", self.per, ("replica", "global"))


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """The learning rate as a function of the step; see `rampline.learning_rate`.

    Attributes:
        schedule: `constant` (= peak), `ramp` (start → peak over `ramp_epochs`, hold, exponential decay to `floor`),
            `steps` (peak * decay^k after the k-th of `step_epochs`) or `cosine` (ramp, hold, half cosine to `floor`).
        start: rate at step 0 of a ramp.
        peak: highest rate, before scaling.
        floor: lowest rate after decay.
        ramp_epochs: length of the linear ramp, in epochs.
        hold_epochs: time at the peak, in epochs.
        decay: factor per epoch (`ramp`) or per boundary (`steps`), in (0, 1].
        step_epochs: boundaries of `steps`, in epochs, rising.
        scale_with: what the peak is multiplied by: `none`, `replicas`, or `global_batch` (global batch /
            base_batch_size).
        base_batch_size: global batch for which `peak` was chosen (`scale_with: global_batch`; Goyal et al. 2017 use
            256).
    """

    schedule: str = "constant"
    start: float = 1e-5
    peak: float = 1e-3
    floor: float = 1e-6
    ramp_epochs: float = 2.0
    hold_epochs: float = 0.0
    decay: float = 0.8
    step_epochs: tuple[float, ...] = (3.0, 7.0)
    scale_with: str = "none"
    base_batch_size: int = 256

    def __post_init__(self) -> None:
        check_choice("learning_rate.schedule", self.schedule, tuple(SCHEDULES))
        check_number("learning_rate.start", self.start, 0)
        check_number("learning_rate.peak", self.peak, 0, open_at="minimum")
        check_number("learning_rate.floor", self.floor, 0, self.peak)
        check_number("learning_rate.ramp_epochs", self.ramp_epochs, 0)
        check_number("learning_rate.hold_epochs", self.hold_epochs, 0)
        check_number("learning_rate.decay", self.decay, 0, 1, open_at="minimum")
        check(isinstance(self.step_epochs, tuple), "learning_rate.step_epochs", self.step_epochs, "a list of epochs")
        for boundary in self.step_epochs:
            check_number("learning_rate.step_epochs", boundary, 0, open_at="minimum")
        rising = list(self.step_epochs) == sorted(set(self.step_epochs))
        check(rising, "learning_rate.step_epochs", self.step_epochs, "rising")
        check_choice("learning_rate.scale_with", self.scale_with, LR_SCALINGS)
        check_integer("learning_rate.base_batch_size", self.base_batch_size, 1)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule; `momentum` is used by `sgd` and `rmsprop`, `weight_decay` (decoupled) by all."""

    name: str = "adam"
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_number("optimizer.momentum", self.momentum, 0, 1, open_at="maximum")
        check_number("optimizer.weight_decay", self.weight_decay, 0)
