"""`RunConfig`: everything that decides one training, checked when it is built."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Literal

from rampline.config.learning_rate import SCALINGS, SCHEDULES
from rampline.config.sections import (
    BatchConfig,
    ClusterConfig,
    DataConfig,
    ExplainConfig,
    LearningRateConfig,
    LossConfig,
    MetricName,
    ModelConfig,
    OptimizerConfig,
    ParityConfig,
    StopConfig,
)
from rampline.config.setting import Count, Flag, Integer, Settings, Whole, check, setting, settings

Strategy = Literal["single", "mirrored", "multi_worker", "parameter_server"]
Engine = Literal["loop", "fit"]
Precision = Literal["float32", "mixed_float16", "mixed_bfloat16"]


@settings("")
class RunConfig(Settings):
    """One training: one `RunConfig` = one MLflow run = one run directory."""

    strategy: Strategy = setting(
        "single",
        "`single`: one device; `mirrored`: several devices of one machine; `multi_worker`: several worker processes "
        "that all-reduce; `parameter_server`: a chief, workers and parameter servers",
    )
    engine: Engine = setting(
        "loop", "`loop`: Rampline's training loop (all strategies); `fit`: `Model.fit` (`single` and `mirrored`)"
    )
    epochs: Count = setting(5, "passes over the training images", changes_epoch_time=False)
    seed: Integer = setting(
        0,
        "decides initial weights, order of examples and augmentation",
        changes_epoch_time=False,
        ge=0,
        le=2**32 - 1,  # NumPy takes no larger one
    )
    repeats: Count = setting(
        1,
        "how often the run is trained, with the seeds `seed`, `seed` + 1 and so on; its figures then are medians, each "
        "with an interval. All runs of a study are trained once, then all once more",
        changes_epoch_time=False,
        changes_training=False,
    )
    precision: Precision = setting(
        "float32",
        "number format of the computation (Keras' policy); `mixed_float16` scales the loss, and a step that overflows "
        "in one replica is skipped by all",
    )
    steps_per_call: Literal["auto"] | Count = setting(
        "auto",
        "training steps in one call of the compiled loop (`loop`); `auto`: as many as take about a second",
    )
    xla: Flag = setting(False, "compile the forward and backward pass with XLA (`loop` only)")
    deterministic: Flag = setting(
        False,
        "only operations that give the same bits every time (`tf.config.experimental.enable_op_determinism`): a run on "
        "GPUs then repeats bit for bit, and takes longer; one on the CPU repeats anyway (not with `parameter_server`)",
    )
    checkpoint_every_steps: Whole = setting(
        0, "extra checkpoints inside an epoch, in steps; 0 for one per epoch (`fit`: 0 only)"
    )
    checkpoint_every_epochs: Count = setting(
        1,
        "epochs from one checkpoint to the next; that of the best epoch so far and the last one are always saved",
        changes_epoch_time=False,
    )
    checkpoint_keep: Whole = setting(
        1,
        "checkpoints that are kept besides the last and the best: what a damaged last one falls back to",
        changes_epoch_time=False,
        changes_training=False,
    )
    log_examples: Flag = setting(
        False,
        "write down which examples every step used, in `examples/` of the run directory (`loop` only; not with "
        "`parameter_server`)",
        changes_epoch_time=False,
    )
    tensorboard: Literal["scalars", "histograms"] = setting(
        "scalars",
        "what is written for TensorBoard after every epoch; `histograms`: those of all trained weights, too",
        changes_epoch_time=False,
    )
    profile: Flag = setting(
        False,
        "capture a TensorBoard trace of a few steps of the chief, after the last epoch",
        changes_epoch_time=False,
        changes_training=False,
    )
    data: DataConfig = setting(DataConfig, "images, and how they are prepared and fed")
    model: ModelConfig = setting(ModelConfig, "the network, and what it starts from")
    batch: BatchConfig = setting(BatchConfig, "examples per step")
    learning_rate: LearningRateConfig = setting(
        LearningRateConfig, "the learning rate over the run", changes_epoch_time=False
    )
    optimizer: OptimizerConfig = setting(OptimizerConfig, "the update rule")
    loss: LossConfig = setting(LossConfig, "the cross-entropy of the logits", changes_epoch_time=False)
    metrics: tuple[MetricName, ...] = setting(
        (),
        "figures of training and validation beside loss and accuracy: `top_K` is the share of images whose class is "
        "among the K most likely ones",
        changes_epoch_time=False,
        allowed="a list of top_K, such as [top_5]",
    )
    stop: StopConfig = setting(
        StopConfig, "what decides the run before its last epoch", changes_epoch_time=False, changes_training=False
    )
    cluster: ClusterConfig = setting(ClusterConfig, "processes and devices, and what they cost")
    parity: ParityConfig = setting(
        ParityConfig,
        "the check that a scaled run trains as one replica would",
        changes_epoch_time=False,
        changes_training=False,
    )
    explain: ExplainConfig = setting(
        ExplainConfig, "the probes that tell where a run's time went", changes_epoch_time=False, changes_training=False
    )

    def __post_init__(self) -> None:
        self._check_engine()
        self._check_cluster()
        self._check_learning_rate()
        # The price of a machine is looked up in the study.
        priced = self.cluster.price_per_hour is not None or self.cluster.machine is not None
        allowed = "null without cluster.price_per_hour, or a cluster.machine of the study's prices"
        self._need("stop.max_cost_usd", priced or self.stop.max_cost_usd is None, allowed)
        enough = self.global_batch_size >= self.num_replicas_in_sync
        allowed = f"at least one example for each of {self.num_replicas_in_sync} replicas"
        self._need("batch.size", enough, allowed)
        if self.batch.accumulate != 1:
            # XLA compiles for one shape, and the last micro-batch may be smaller.
            self._need("xla", not self.xla, f"false with batch.accumulate={self.batch.accumulate}")
        if isinstance(self.batch.accumulate, int):
            share = self.per_replica_batch_size
            allowed = f"at most {share}, the examples of a replica"
            self._need("batch.accumulate", self.batch.accumulate <= share, allowed)

    def _need(self, name: str, is_so: bool, allowed: str) -> None:
        """Refuse the value of a dotted key."""
        check(is_so, name, attrgetter(name)(self), allowed)

    def _check_engine(self) -> None:
        if self.engine == "fit":
            allowed = f"loop for strategy {self.strategy} (Keras 3's Model.fit fails there)"
            self._need("engine", self.strategy in ("single", "mirrored"), allowed)
            allowed = "0 with engine=fit (resumed at whole epochs)"
            self._need("checkpoint_every_steps", self.checkpoint_every_steps == 0, allowed)
            self._need("log_examples", not self.log_examples, "false with engine=fit (Keras owns the steps)")
            self._need("xla", not self.xla, "false with engine=fit (Model.fit cannot compile a mirrored step)")
            self._need("batch.accumulate", self.batch.accumulate == 1, "1 with engine=fit (Keras owns the steps)")

        if self.strategy == "parameter_server":
            allowed = "false for strategy parameter_server (whichever worker is free takes a step)"
            self._need("log_examples", not self.log_examples, allowed)
            # A compiled function cannot read variables that live in another process.
            self._need("xla", not self.xla, "false for strategy parameter_server")
            allowed = "false for strategy parameter_server (no two of its trainings are the same)"
            self._need("deterministic", not self.deterministic, allowed)

    def _check_learning_rate(self) -> None:
        rate, peak = self.learning_rate, self.peak_learning_rate
        if SCHEDULES[rate.schedule].is_ramp:
            self._need("learning_rate.floor", rate.floor <= peak, f"at most {peak:g}, the scaled peak")

    def _check_cluster(self) -> None:
        cluster, for_strategy = self.cluster, f"for strategy {self.strategy}"
        distributed = self.strategy in ("multi_worker", "parameter_server")
        self._need("cluster.workers", distributed or cluster.workers == 1, f"1 {for_strategy}")
        many = self.strategy in ("mirrored", "multi_worker")
        self._need("cluster.replicas", many or cluster.replicas == 1, f"1 {for_strategy}")
        self._check_elastic()
        if self.strategy == "parameter_server":
            self._need("cluster.parameter_servers", cluster.parameter_servers >= 1, f"at least 1 {for_strategy}")
        else:
            self._need("cluster.parameter_servers", cluster.parameter_servers == 0, f"0 {for_strategy}")
        if not isinstance(cluster.virtual_devices, str):
            self._check_virtual_devices(cluster.virtual_devices)

    def _check_elastic(self) -> None:
        cluster, is_multi_worker = self.cluster, self.strategy == "multi_worker"
        if cluster.min_workers is not None:
            self._need("cluster.min_workers", is_multi_worker, f"null for strategy {self.strategy}")
            allowed = f"null or at most cluster.workers={cluster.workers}"
            self._need("cluster.min_workers", cluster.min_workers <= cluster.workers, allowed)
        if cluster.sum == "exact":
            self._need("cluster.sum", is_multi_worker, f"fast for strategy {self.strategy}")
            allowed = "1 with cluster.sum=exact: let each worker have one device, and raise cluster.workers"
            self._need("cluster.replicas", cluster.replicas == 1, allowed)

    def _check_virtual_devices(self, virtual: int) -> None:
        if self.strategy == "multi_worker":
            # TensorFlow's MultiWorkerMirroredStrategy uses one CPU device per worker, or all its GPUs.
            self._need("cluster.virtual_devices", virtual <= 1, "0 for strategy multi_worker: raise cluster.workers")
        replicas = self.cluster.replicas
        allowed = f"0 or at least cluster.replicas={replicas}"
        self._need("cluster.virtual_devices", virtual == 0 or virtual >= replicas, allowed)

    @property
    def replicas(self) -> int:
        """Copies of the model that compute gradients, over all processes."""
        return self.cluster.replicas * self.cluster.workers

    @property
    def is_synchronous(self) -> bool:
        """Whether all replicas contribute to every update (not so with parameter servers)."""
        return self.strategy != "parameter_server"

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are summed into one update, as in `tf.distribute`; 1 for parameter servers."""
        return self.replicas if self.is_synchronous else 1

    @property
    def global_batch_size(self) -> int:
        """Examples behind one update of the weights."""
        return self.batch.size if self.batch.per == "global" else self.batch.size * self.num_replicas_in_sync

    @property
    def per_replica_batch_size(self) -> int:
        """Examples of the largest share that one replica gets in a full global batch."""
        return self.share_of(self.global_batch_size)

    def share_of(self, examples: int) -> int:
        """The same of the largest global batch that so many examples make."""
        return math.ceil(min(examples, self.global_batch_size) / self.num_replicas_in_sync)

    @property
    def micro_batch_size(self) -> int | None:
        """Examples that one replica computes at once with `batch.accumulate`; `None`: all of its share."""
        parts = self.batch.accumulate
        return math.ceil(self.per_replica_batch_size / parts) if isinstance(parts, int) and parts > 1 else None

    @property
    def rows_at_once(self) -> int:
        """Examples that one replica computes at once: of a micro-batch, or all of its share."""
        return self.micro_batch_size or self.per_replica_batch_size

    def steps_per_epoch(self, train_examples: int) -> int:
        """Updates per pass over `train_examples`, the partial last batch included."""
        return math.ceil(train_examples / self.global_batch_size)

    @property
    def peak_learning_rate(self) -> float:
        """The peak after `learning_rate.scale_with`."""
        rate = self.learning_rate
        return rate.peak * SCALINGS[rate.scale_with].factor(self)
