"""The flow `predict` with a champion that the MLflow server keeps: its table, its artifacts, and what it says."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import prefect_settings
from flow_runs import Flows
from prefect_rest import PrefectApi
from trained_runs import MODEL, STUDY, aliases, delete_model, write_test_images

from rampline.files import read_json
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry.promotion import promote
from rampline.study.execution_file import Execution
from rampline.tracking.store import open_tracking
from rampline.tracking.sync import sync_execution

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("narrow")]


@pytest.fixture
def narrow(usual_umask: None) -> None:
    """As the command does: Prefect's results and MLflow's artifacts are files that their clients write."""
    os.umask(0o077)


@pytest.fixture
def home(
    stack: Flows, mlflow_login: None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Home]:
    """With a copy of the trained runs, because what a run directory knows of its MLflow run becomes the server's."""
    home = Home(root=tmp_path / "home")
    execution = shutil.copytree(trained, home.runs / STUDY / "e2")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stack.state.mlflow_url)
    monkeypatch.setenv("RAMPLINE_HOME", str(home.root))
    client = open_tracking(home)
    sync_execution(client, Execution.open(execution), log=print)
    with prefect_settings(stack.prefect):
        yield home
    delete_model(client)


def artifact(api: PrefectApi, key: str) -> dict[str, Any]:
    return api.request("GET", f"/artifacts/{key}/latest")


@pytest.mark.long
def test_over_http_the_alias_moves_and_the_folder_is_labelled_with_the_model_of_the_server(
    home: Home, api: PrefectApi, tmp_path: Path
) -> None:
    from rampline.flows.predict import predict

    execution, client = home.runs / STUDY / "e2", open_tracking(home)
    for run in ("fair", "better"):
        promote(str(execution / run), home=home, log=print)
    assert aliases(client) == {"champion": 2, "previous-champion": 1}
    version = client.get_model_version_by_alias(MODEL, "champion")
    assert json.loads(version.tags["rampline.gate.right_only_new"]) > 0
    assert version.run_id == read_json(RunDirectory(execution / "better").tracking_file)["run_id"]

    images = tmp_path / "images"
    paths = write_test_images(RunDirectory(execution / "better"), images)
    (images / "broken.png").write_text("no image")
    shutil.rmtree(execution)
    state = predict(study=STUDY, images=str(images), probabilities=True, return_state=True)
    assert state.is_completed(), state.message
    output = Path(state.result())
    assert output.parent == home.predictions / STUDY
    assert len(output.read_text().splitlines()) == len(paths) + 2
    assert output.read_text().splitlines()[0].endswith('"error",' + ",".join(f'"p_{digit}"' for digit in range(10)))
    table = artifact(api, f"labels-{STUDY}")
    rows = {row["label"]: row["images"] for row in json.loads(table["data"])}
    assert rows.pop("(without a label)") == 1
    assert (list(rows), sum(rows.values())) == ([str(digit) for digit in range(10)], len(paths))
    assert table["description"] == f"Table: {output}"
    assert f"/#/models/{MODEL}/versions/2" in artifact(api, f"champion-{STUDY}")["data"]


def test_without_images_it_says_what_to_give(stack: Flows) -> None:
    from rampline.flows.predict import predict

    with prefect_settings(stack.prefect):
        state = predict(study=STUDY, return_state=True)
    assert state.is_failed()
    assert "images is empty: give the folder of the image files to label" in str(state.message)
