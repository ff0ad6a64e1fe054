"""The parts of a `RunConfig` that decide what is computed: data, model, batch, learning rate, optimizer."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from rampline.config.learning_rate import SCHEDULES
from rampline.credentials import check_no_credentials
from rampline.errors import ConfigError

# What TensorFlow, and the files that a setting is written to, can hold.
LARGEST_INTEGER = 2**63 - 1


def check(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {allowed}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    check(value in choices, name, value, "one of " + ", ".join(choices))


def check_integer(name: str, value: object, minimum: int) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    allowed = f"a whole number of at least {minimum}"
    check(is_integer and minimum <= value <= LARGEST_INTEGER, name, value, allowed)  # type: ignore[operator]


def check_number(name: str, value: object, minimum: float, maximum: float = math.inf, *, open_at: str = "") -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    inside = is_number and minimum <= value <= maximum  # type: ignore[operator]
    inside = (
        inside and not ("minimum" in open_at and value == minimum) and not ("maximum" in open_at and value == maximum)
    )
    low = f"greater than {minimum:g}" if "minimum" in open_at else f"at least {minimum:g}"
    high = (
        ""
        if maximum == math.inf
        else (f" and less than {maximum:g}" if "maximum" in open_at else f" and at most {maximum:g}")
    )
    check(inside, name, value, f"a number {low}{high}")


def check_text(name: str, value: object) -> None:
    check(isinstance(value, str) and bool(value), name, value, "a non-empty text")
    check_no_credentials(name, value)


def check_flag(name: str, value: object) -> None:
    check(isinstance(value, bool), name, value, "true or false")


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
    """The learning rate as a function of the step; see `rampline.config.learning_rate`.

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


AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Processes and devices.

    Attributes:
        replicas: model replicas in one process, one device each (`mirrored`, and per worker for `multi_worker`).
        workers: worker processes (`multi_worker`, `parameter_server`).
        parameter_servers: processes that hold the variables (`parameter_server`).
        virtual_devices: logical CPU devices in each process, to run several replicas without GPUs; 0 for none, `auto`
            for `replicas` where the machine has no GPU. `rampline.devices` puts a number for `auto`.
        rendezvous_timeout_seconds: how long the roles may take to find each other.
        run_timeout_seconds: the run is ended after this long; `None` for no limit.
        max_restarts: how often a run that lost a role is started again from its last checkpoint.
        heartbeat_timeout_seconds: a role that does not move for this long counts as frozen, and as lost.
        preempted_exit_status: exit status of a run that was asked to stop and saved a checkpoint first.
        price_per_hour: what the whole set-up costs per hour in USD; `None` takes it from the study's prices for
            `machine`, and leaves costs out without one.
        machine: machine type, a key of the study's prices.
        machines: how many of them the run needs.
    """

    replicas: int = 1
    workers: int = 1
    parameter_servers: int = 0
    virtual_devices: int | str = 0
    rendezvous_timeout_seconds: int = 120
    run_timeout_seconds: int | None = None
    max_restarts: int = 3
    heartbeat_timeout_seconds: int = 60
    preempted_exit_status: int = 143
    price_per_hour: float | None = None
    machine: str | None = None
    machines: int = 1

    def __post_init__(self) -> None:
        check_integer("cluster.replicas", self.replicas, 1)
        check_integer("cluster.workers", self.workers, 1)
        check_integer("cluster.parameter_servers", self.parameter_servers, 0)
        if isinstance(self.virtual_devices, str):
            allowed = f"{AUTO} or a whole number of at least 0"
            check(self.virtual_devices == AUTO, "cluster.virtual_devices", self.virtual_devices, allowed)
        else:
            check_integer("cluster.virtual_devices", self.virtual_devices, 0)
        check_integer("cluster.rendezvous_timeout_seconds", self.rendezvous_timeout_seconds, 1)
        if self.run_timeout_seconds is not None:
            check_integer("cluster.run_timeout_seconds", self.run_timeout_seconds, 1)
        check_integer("cluster.max_restarts", self.max_restarts, 0)
        check_integer("cluster.heartbeat_timeout_seconds", self.heartbeat_timeout_seconds, 5)
        check_integer("cluster.preempted_exit_status", self.preempted_exit_status, 0)
        is_status = self.preempted_exit_status <= 255
        check(is_status, "cluster.preempted_exit_status", self.preempted_exit_status, "0 to 255")
        if self.price_per_hour is not None:
            check_number("cluster.price_per_hour", self.price_per_hour, 0)
        if self.machine is not None:
            check_text("cluster.machine", self.machine)
        check_integer("cluster.machines", self.machines, 1)


@dataclass(frozen=True, kw_only=True)
class ParityConfig:
    """The check, before a scaled run, that its replicas train as one would; see `rampline.parity`.

    Attributes:
        steps: training steps that are compared; 0 leaves the check out.
        on_failure: `stop` the run before it trains, or `continue` with the tag `rampline.parity=fail`.
    """

    steps: int = 10
    on_failure: str = "stop"

    def __post_init__(self) -> None:
        check_integer("parity.steps", self.steps, 0)
        check_choice("parity.on_failure", self.on_failure, ("stop", "continue"))


@dataclass(frozen=True, kw_only=True)
class ExplainConfig:
    """The probes at the end of a run that tell where its time went; see `rampline.explain`.

    Attributes:
        steps: training steps of each probe; 0 leaves the probes out.
    """

    steps: int = 20

    def __post_init__(self) -> None:
        check_integer("explain.steps", self.steps, 0)
