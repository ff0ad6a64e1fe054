"""The configuration of a run: frozen dataclasses that check themselves and round-trip through JSON."""

from rampline.config.formats import apply_overrides, flatten, from_dict, merge, parse_overrides, to_dict
from rampline.config.run_config import RunConfig
from rampline.config.sections import (
    BatchConfig,
    ClusterConfig,
    DataConfig,
    ExplainConfig,
    LearningRateConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    ParityConfig,
    StopConfig,
)

__all__ = [
    "BatchConfig",
    "ClusterConfig",
    "DataConfig",
    "ExplainConfig",
    "LearningRateConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParityConfig",
    "RunConfig",
    "StopConfig",
    "apply_overrides",
    "flatten",
    "from_dict",
    "merge",
    "parse_overrides",
    "to_dict",
]
