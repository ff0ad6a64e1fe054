"""The comparison of a study's runs, read from MLflow: as a table, in a terminal, as a report and as MLflow figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import rampline.tracking  # noqa: F401 - its settings must be there before mlflow is imported

if TYPE_CHECKING:
    from rampline.comparison.data_tables import make_data_tables
    from rampline.comparison.report import ComparisonFiles, write_comparison
    from rampline.comparison.summary import StudySummary, derived_metrics, summarise
    from rampline.comparison.table import Comparison, read_comparison
    from rampline.comparison.terminal import print_comparison

__all__ = [
    "Comparison",
    "ComparisonFiles",
    "StudySummary",
    "derived_metrics",
    "make_data_tables",
    "print_comparison",
    "read_comparison",
    "summarise",
    "write_comparison",
]

_MODULES = {
    **dict.fromkeys(("Comparison", "read_comparison"), "table"),
    **dict.fromkeys(("ComparisonFiles", "write_comparison"), "report"),
    **dict.fromkeys(("StudySummary", "derived_metrics", "summarise"), "summary"),
    "make_data_tables": "data_tables",
    "print_comparison": "terminal",
}


def __getattr__(name: str) -> Any:
    # matplotlib and SciPy, which only the report needs, take as long to import as a comparison takes to be shown.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
