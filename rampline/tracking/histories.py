"""Every point of some metrics of many runs, in a few requests: MLflow's client has a request per run and metric only.

A database is asked through MLflow's own store, a server through the endpoint that its charts use
(`get_metric_history_bulk` and `GET ajax-api/2.0/mlflow/metrics/get-history-bulk`, mlflow/server/handlers.py, 3.17). A
server that has no such endpoint is asked run by run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.utils.rest_utils import http_request

ENDPOINT = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
# A server takes no more runs per request, and leaves out what is beyond that many points.
RUNS_PER_REQUEST, POINTS_PER_REQUEST = 100, 25_000

# Points by id of the run and name of the metric, in the order in which they were logged; names without points are not
# there.
Histories = dict[tuple[str, str], list[Metric]]


def read_histories(client: MlflowClient, runs: Sequence[Run], names: Iterable[str]) -> Histories:
    """All points of the metrics `names` of `runs`; the number of requests grows with the names, hardly with the runs.

    Raises:
        MlflowException: when the store cannot be read.
    """
    histories: Histories = defaultdict(list)
    for name in names:
        having = [run.info.run_id for run in runs if name in run.data.metrics]
        for first in range(0, len(having), RUNS_PER_REQUEST):
            for run_id, point in _read(client, having[first : first + RUNS_PER_REQUEST], name):
                histories[run_id, name].append(point)
    return dict(histories)


def _read(client: MlflowClient, run_ids: Sequence[str], name: str) -> Iterator[tuple[str, Metric]]:
    if len(run_ids) == 1:
        yield from ((run_ids[0], point) for point in client.get_metric_history(run_ids[0], name))
        return
    points = _ask(client, run_ids, name)
    if points is not None and len(points) < POINTS_PER_REQUEST:
        yield from points
        return
    # Some may have been left out: with half as many runs there is room, one run is read page by page.
    half = len(run_ids) // 2 if points is not None else 1
    for first in range(0, len(run_ids), half):
        yield from _read(client, run_ids[first : first + half], name)


def _ask(client: MlflowClient, run_ids: Sequence[str], name: str) -> list[tuple[str, Metric]] | None:
    """At most `POINTS_PER_REQUEST` points; `None` where this store has no such request."""
    store = client._tracking_client.store
    if hasattr(store, "get_metric_history_bulk"):
        found = store.get_metric_history_bulk(list(run_ids), name, POINTS_PER_REQUEST)
        return [(point.run_id, point) for point in found]
    if not hasattr(store, "get_host_creds"):
        return None
    asked = {"run_id": list(run_ids), "metric_key": name, "max_results": POINTS_PER_REQUEST}
    answer = http_request(store.get_host_creds(), ENDPOINT, "GET", params=asked)
    if answer is None or answer.status_code != 200:
        return None
    metrics = json.loads(answer.text)["metrics"]
    return [(m["run_id"], Metric(m["key"], m["value"], m["timestamp"], m["step"])) for m in metrics]
