"""The comparison of a study's runs, read from MLflow: as a table, in a terminal, as a report and as MLflow figures."""

import rampline.tracking  # noqa: F401 - its settings must be there before mlflow is imported
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
