"""The flow `predict` on a server: its table, its artifacts, and what it says without a folder."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from trained_runs import MODEL, STUDY, write_test_images

from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry.promotion import promote

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CALL = """
import json, sys
from rampline.flows.predict import predict
state = predict(**json.loads(sys.argv[1]), return_state=True)
print(state.type.value, state.message if state.is_failed() else state.result())
"""


def call(server: Any, **parameters: Any) -> str:
    """The last line that a process prints which calls the flow: state, and path or message."""
    command = [sys.executable, "-c", CALL, json.dumps(parameters)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | server.prefect, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.splitlines()[-1]


def artifact(server: Any, key: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}/artifacts/{key}/latest", timeout=30) as answer:
        return json.load(answer)


def test_the_folder_is_labelled_and_the_page_shows_how_many_of_what(
    server: Any, registry: MlflowClient, trained: Path, rampline_home: Path, tmp_path: Path
) -> None:
    promote(str(trained / "better"), home=Home(root=rampline_home), log=print)
    paths = write_test_images(RunDirectory(trained / "better"), tmp_path)
    (tmp_path / "broken.png").write_text("no image")

    state, _, output = call(server, study=STUDY, images=str(tmp_path)).partition(" ")
    assert state == "COMPLETED"
    assert Path(output).parent == rampline_home / "predictions" / STUDY
    assert len(Path(output).read_text().splitlines()) == len(paths) + 2
    table = artifact(server, f"labels-{STUDY}")
    rows = {row["label"]: row["images"] for row in json.loads(table["data"])}
    assert rows.pop("(cannot be read)") == 1
    assert (list(rows), sum(rows.values())) == ([str(digit) for digit in range(10)], len(paths))
    assert table["description"] == f"Table: {output}"
    link = artifact(server, f"champion-{STUDY}")["data"]
    assert f"/#/models/{MODEL}/versions/1" in link

    state, _, message = call(server, study=STUDY).partition(" ")
    assert state == "FAILED"
    assert "images is empty: give the folder of the image files to label" in message
