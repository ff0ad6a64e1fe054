"""Rampline: Keras 3 image classifiers on every `tf.distribute` strategy, measured, compared and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rampline.result import Result, run

    __version__: str

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
