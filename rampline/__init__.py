"""Rampline: Keras 3 image classifiers on every `tf.distribute` strategy, measured, compared and explained."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rampline.result import Result, run

    __version__: str

# MLflow reads them when it is imported or used, and whatever of ours does that has imported this package before. What
# the user has set stays. Telemetry would open connections on machines that may have no network; the URL lines and the
# upload bar belong to a notebook; seven retries would stop the reader of a run's events for minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

__all__ = ["Result", "__version__", "run"]


def __getattr__(name: str) -> Any:
    """What a user asks for is imported when it is: every process of ours imports this package first."""
    if name == "__version__":
        from importlib.metadata import version

        return version("rampline")
    if name in __all__:
        from rampline import result

        return getattr(result, name)
    raise AttributeError(f"module 'rampline' has no attribute {name!r}")
