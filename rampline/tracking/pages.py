"""Addresses of MLflow's pages, from `#` on: after the address of a server, or as links inside its descriptions.

`workflowType` opens them as pages of training; without it MLflow 3.17 shows menus for language models until somebody
has switched them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

TRAINING = {"workflowType": "machine_learning"}


def experiment_page(experiment_id: str, view: str = "", *, charts: bool = False) -> str:
    """The runs of an experiment, in one of its views (`rampline.tracking.views`), as a table or as charts."""
    query = TRAINING | ({"viewStateShareKey": view} if view else {}) | ({"compareRunsMode": "CHART"} if charts else {})
    return f"#/experiments/{experiment_id}/runs?{urlencode(query)}"


def run_page(experiment_id: str, run_id: str) -> str:
    """A run's overview."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{urlencode(TRAINING)}"


def artifact_page(experiment_id: str, run_id: str, path: str) -> str:
    """A file of a run, such as `report.html`."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{quote(path)}?{urlencode(TRAINING)}"


def model_version_page(model: str, version: int) -> str:
    """A version of a registered model."""
    return f"#/models/{model}/versions/{version}?{urlencode(TRAINING)}"


def compare_page(experiment_id: str, run_ids: Sequence[str]) -> str:
    """Runs of an experiment side by side: all params, all metrics, and what differs."""
    query = {"runs": json.dumps(list(run_ids)), "experiments": json.dumps([experiment_id])}
    return f"#/compare-runs?{urlencode(query | TRAINING, quote_via=quote)}"
