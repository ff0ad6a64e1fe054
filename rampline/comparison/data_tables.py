"""The data report as the tables of `report.html`."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from rampline.data.report import DataReport


def make_data_tables(reports: Sequence[DataReport]) -> dict[str, pd.DataFrame]:
    """Tables by heading for `write_comparison`; the source is named in the headings where a study has several."""
    tables: dict[str, pd.DataFrame] = {}
    for report in reports:
        source = f", {report.source} ({report.fingerprint[:8]})" if len(reports) > 1 else ""
        tables[f"Images by split and class{source}"] = report.summary
        tables[f"Files that do not decode{source}"] = report.undecodable
        tables[f"Images in more than one split{source}"] = report.repeated("across")
        tables[f"Images more than once in one split{source}"] = report.repeated("within")
    return tables
