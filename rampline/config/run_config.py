"""`RunConfig`: everything that decides one training, checked when it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rampline.config.sections import (
    BatchConfig,
    ClusterConfig,
    DataConfig,
    ExplainConfig,
    LearningRateConfig,
    ModelConfig,
    OptimizerConfig,
    ParityConfig,
    check,
    check_choice,
    check_flag,
    check_integer,
)

STRATEGIES = ("single", "mirrored", "multi_worker", "parameter_server")
ENGINES = ("loop", "fit")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training: one `RunConfig` = one MLflow run = one run directory.

    Attributes:
        strategy: `single`, `mirrored`, `multi_worker` or `parameter_server`.
        engine: `loop` (ours, all strategies) or `fit` (`Model.fit`, single and mirrored).
        epochs: passes over the training split.
        seed: decides initial weights, order of examples and augmentation.
        precision: `float32`, `mixed_float16` or `mixed_bfloat16`.
        steps_per_call: training steps in one call of the compiled loop; `auto`: as many as take about a second.
        xla: compile the forward and backward pass with XLA (`loop` only).
        checkpoint_every_steps: extra checkpoints inside an epoch, in steps; 0 for one per epoch.
        checkpoint_keep: checkpoints that are kept besides the last and the best: what a damaged last one falls back to.
        log_examples: write down which examples every step used (`RUN_DIR/examples/`; `loop` only).
        profile: capture a TensorBoard trace of a few steps of the chief, after the last epoch.
    """

    strategy: str = "single"
    engine: str = "loop"
    epochs: int = 5
    seed: int = 0
    precision: str = "float32"
    steps_per_call: int | str = "auto"
    xla: bool = False
    checkpoint_every_steps: int = 0
    checkpoint_keep: int = 1
    log_examples: bool = False
    profile: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    learning_rate: LearningRateConfig = field(default_factory=LearningRateConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    parity: ParityConfig = field(default_factory=ParityConfig)
    explain: ExplainConfig = field(default_factory=ExplainConfig)

    def __post_init__(self) -> None:
        check_choice("strategy", self.strategy, STRATEGIES)
        check_choice("engine", self.engine, ENGINES)
        check_integer("epochs", self.epochs, 1)
        check_integer("seed", self.seed, 0)
        check_choice("precision", self.precision, PRECISIONS)
        if isinstance(self.steps_per_call, str):
            allowed = "auto or a whole number of at least 1"
            check(self.steps_per_call == "auto", "steps_per_call", self.steps_per_call, allowed)
        else:
            check_integer("steps_per_call", self.steps_per_call, 1)
        check_flag("xla", self.xla)
        check_integer("checkpoint_every_steps", self.checkpoint_every_steps, 0)
        check_integer("checkpoint_keep", self.checkpoint_keep, 0)
        check_flag("log_examples", self.log_examples)
        check_flag("profile", self.profile)
        self._check_engine()
        self._check_cluster()
        enough = self.global_batch_size >= self.num_replicas_in_sync
        allowed = f"at least one example for each of {self.num_replicas_in_sync} replicas"
        check(enough, "batch.size", self.batch.size, allowed)

    def _check_engine(self) -> None:
        if self.engine == "fit":
            allowed = "loop for strategy " + self.strategy + " (Keras 3's Model.fit fails there)"
            check(self.strategy in ("single", "mirrored"), "engine", self.engine, allowed)
            every = self.checkpoint_every_steps
            check(every == 0, "checkpoint_every_steps", every, "0 with engine=fit (resumed at whole epochs)")
            check(
                not self.log_examples, "log_examples", self.log_examples, "false with engine=fit (Keras owns the steps)"
            )
            check(not self.xla, "xla", self.xla, "false with engine=fit (Model.fit cannot compile a mirrored step)")

        if self.strategy == "parameter_server":
            allowed = "false for strategy parameter_server (whichever worker is free takes a step)"
            check(not self.log_examples, "log_examples", self.log_examples, allowed)
            # A compiled function cannot read variables that live in another process.
            check(not self.xla, "xla", self.xla, "false for strategy parameter_server")

    def _check_cluster(self) -> None:
        cluster = self.cluster
        distributed = self.strategy in ("multi_worker", "parameter_server")
        check(
            distributed or cluster.workers == 1, "cluster.workers", cluster.workers, f"1 for strategy {self.strategy}"
        )
        many = self.strategy in ("mirrored", "multi_worker")
        check(many or cluster.replicas == 1, "cluster.replicas", cluster.replicas, f"1 for strategy {self.strategy}")
        servers = cluster.parameter_servers
        if self.strategy == "parameter_server":
            check(servers >= 1, "cluster.parameter_servers", servers, "at least 1 for strategy parameter_server")
        else:
            check(servers == 0, "cluster.parameter_servers", servers, f"0 for strategy {self.strategy}")
        if not isinstance(cluster.virtual_devices, str):
            self._check_virtual_devices(cluster.virtual_devices)

    def _check_virtual_devices(self, virtual: int) -> None:
        if self.strategy == "multi_worker":
            # TensorFlow's MultiWorkerMirroredStrategy uses one CPU device per worker, or all its GPUs.
            allowed = "0 for strategy multi_worker: raise cluster.workers"
            check(virtual <= 1, "cluster.virtual_devices", virtual, allowed)
        replicas = self.cluster.replicas
        allowed = f"0 or at least cluster.replicas={replicas}"
        check(virtual == 0 or virtual >= replicas, "cluster.virtual_devices", virtual, allowed)

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
        return math.ceil(self.global_batch_size / self.num_replicas_in_sync)

    def steps_per_epoch(self, train_examples: int) -> int:
        """Updates per pass over `train_examples`, the partial last batch included."""
        return math.ceil(train_examples / self.global_batch_size)

    @property
    def peak_learning_rate(self) -> float:
        """The peak after `learning_rate.scale_with`."""
        rate = self.learning_rate
        factors = {
            "none": 1.0,
            "replicas": float(self.num_replicas_in_sync),
            "global_batch": self.global_batch_size / rate.base_batch_size,
        }
        return rate.peak * factors[rate.scale_with]
