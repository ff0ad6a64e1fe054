"""A run of the demo as MLflow held it, kept in tests/golden/demo.json: the same figures, and so the same conclusions.

`RAMPLINE_GOLDEN=record` makes tests/test_demo.py write it anew.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

from golden import FOLDER
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run

FILE = FOLDER / "demo.json"
PREDICTIONS = "predictions.csv"
# Of the machine and its user, and what stands for it.
PRIVATE = {
    "mlflow.user": "me",
    "mlflow.source.git.commit": "0123456789abcdef0123456789abcdef01234567",
    "rampline.git_commit": "0123456789abcdef0123456789abcdef01234567",
    "rampline.environment.host": "machine",
    "rampline.process": "machine:1:1795555200",
}
POINTS_AT_ONCE = 1000
CLASSES = 10


def record(client: MlflowClient, home: Path) -> None:
    """Write what MLflow has of the execution in `home`, without the names of the machine and its user."""
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    host = runs[0].data.tags["rampline.environment.host"]
    text = json.dumps([_recorded(client, run) for run in runs], indent=1, sort_keys=True, ensure_ascii=False)
    text = re.sub(r"\[\s+(-?[\d.e-]+,)\s+(-?[\d.e-]+,)\s+(-?[\d.e-]+)\s+\]", r"[\1 \2 \3]", text)  # a point on a line
    text = text.replace(str(home), "/home/me/.rampline").replace(f"{host} (", "machine (")
    FILE.write_text(f"{text}\n", encoding="utf-8")


def _recorded(client: MlflowClient, run: Run) -> dict[str, Any]:
    tags = {name: PRIVATE.get(name, value) for name, value in run.data.tags.items()}
    metrics = {key: _points(client, run, key) for key in run.data.metrics}
    found = {"start_time": run.info.start_time, "params": run.data.params, "tags": tags, "metrics": metrics}
    if tags["rampline.kind"] == "run":
        predictions = Path(client.download_artifacts(run.info.run_id, PREDICTIONS))
        found["predictions"] = predictions.read_text(encoding="utf-8").splitlines()
    return found


def _points(client: MlflowClient, run: Run, key: str) -> list[tuple[int, int, float]]:
    """Step, milliseconds since the run began, value with six digits."""
    points = client.get_metric_history(run.info.run_id, key)
    return [(p.step, p.timestamp - run.info.start_time, float(f"{p.value:.6g}")) for p in points]


def _evaluate(predictions: list[str]) -> dict[str, Any]:
    """What the comparison reads of `evaluation.json`."""
    matrix = [[0] * CLASSES for _ in range(CLASSES)]
    for answer in csv.DictReader(predictions):
        matrix[int(answer["label"])][int(answer["prediction"])] += 1
    return {"class_names": list(map(str, range(CLASSES))), "confusion_matrix": matrix}


def replay(client: MlflowClient, artifacts: Path) -> str:
    """Log the recorded execution as study `digits`; returns the id of its parent run."""
    experiment_id, parent = client.create_experiment("digits", str(artifacts)), ""
    # The execution began before its runs.
    for recorded in json.loads(FILE.read_text(encoding="utf-8")):
        began, tags = recorded["start_time"], recorded["tags"]
        if parent:
            tags["mlflow.parentRunId"] = parent
        run_id = client.create_run(experiment_id, began, tags, tags["mlflow.runName"]).info.run_id
        points = [(key, *point) for key, points in recorded["metrics"].items() for point in points]
        metrics = [Metric(key, value, began + at, step) for key, step, at, value in points]
        for first in range(0, len(metrics), POINTS_AT_ONCE):
            client.log_batch(run_id, metrics=metrics[first : first + POINTS_AT_ONCE])
        client.log_batch(run_id, params=[Param(key, value) for key, value in recorded["params"].items()])
        if "predictions" in recorded:
            client.log_text(run_id, "\n".join(recorded["predictions"]) + "\n", PREDICTIONS)
            client.log_dict(run_id, _evaluate(recorded["predictions"]), "evaluation.json")
        client.set_terminated(run_id)
        parent = parent or run_id
    return parent
