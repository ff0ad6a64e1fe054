"""The parity check of a run in MLflow."""

from __future__ import annotations

import json
from dataclasses import asdict

from mlflow.tracking import MlflowClient

from rampline.metrics import Source, to_log
from rampline.parity import RESULT, ParityResult
from rampline.tracking.figures import log_figures

PARITY_TAG = "rampline.parity"


def log_parity(client: MlflowClient, run_id: str, result: ParityResult) -> None:
    """Log the tag `rampline.parity` (pass, fail or not_applicable), what was measured, and `parity.json`.

    Doing it again changes nothing. A figure that was not measured, or is not finite, is left out.
    """
    client.set_tag(run_id, PARITY_TAG, result.status)
    log_figures(client, run_id, to_log(Source.PARITY, asdict(result)))
    client.log_text(run_id, json.dumps(asdict(result), indent=2) + "\n", RESULT)
