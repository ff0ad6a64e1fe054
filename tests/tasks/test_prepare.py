import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
from file_server import serve
from PIL import Image
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from stored_data import store_here

from rampline.config import DataConfig
from rampline.data.preparation import locate_prepared
from rampline.flows.prepare import prepare
from rampline.progress import TERMINAL, LineProgress
from rampline.record.home import Home
from rampline.tasks.page import artifact_key
from rampline.tasks.steps import cache_key


def key_of(config: DataConfig) -> str | None:
    found = locate_prepared(config, Home.from_environment())
    return cache_key(None, {"config": config, "present": found and str(found.directory)})


def test_cached_preparation_holds_as_long_as_the_folder_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    config = DataConfig(source="digits", limit=5)
    assert key_of(config) is None
    prepared = store_here(config, Home.from_environment())
    key = key_of(config)
    assert key is not None
    assert key == key_of(DataConfig(source="digits", limit=5))
    assert key_of(DataConfig(source="digits", limit=6)) is None
    prepared.directory.rename(tmp_path / "gone")
    assert key_of(config) is None


def test_artifact_keys_are_lower_case_letters_digits_and_dashes():
    key = artifact_key("data-report", "folder:/data/Cats & Dogs")
    assert re.fullmatch("data-report-folder-data-cats-dogs-[0-9a-f]{4}", key)
    assert artifact_key("epochs", "mirrored-ramp") == "epochs-mirrored-ramp"


@pytest.mark.parametrize(("one", "other"), [("a_b", "a-b"), ("x-", "x"), ("a--b", "a-b"), ("a_b", "a__b")])
def test_runs_of_other_names_have_other_artifact_keys(one, other):
    assert artifact_key("epochs", one) != artifact_key("epochs", other)


@pytest.mark.slow
def test_a_source_that_is_wrong_is_not_tried_again(prefect_server, tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    study, api = tmp_path / "wrong.yaml", prefect_server.api
    study.write_text("base: {data: {source: 'tfds:no_such_set'}}\nruns: {one: {}}\n")
    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        assert prepare(study=str(study), return_state=True).is_failed()
    [tried] = api.post("/task_runs/filter", {"task_runs": {"name": {"any_": ["prepare tfds:no_such_set"]}}})
    assert tried["run_count"] == 1


@pytest.mark.slow
def test_a_leak_is_told_after_each_preparation(prefect_server, tmp_path, monkeypatch):
    """The store is there at the second one alone: a run that has not begun may go on elsewhere."""
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    images = ("train/a/1", "train/a/2", "train/b/1", "train/b/2", "test/a/1", "test/b/1")
    for shade, name in enumerate(images):
        path = tmp_path / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (shade % 5,) * 3).save(path)  # the last image is the first one
    study, source = tmp_path / "photos.yaml", f"folder:{tmp_path / 'photos'}"
    data = f"{{source: '{source}', image_size: 8, validation_fraction: 0.5}}"
    study.write_text(f"base: {{data: {data}}}\nruns: {{one: {{}}}}\n")
    for said in ([], []):
        assert not list(tmp_path.glob("store/data/*"))
        token = TERMINAL.set(LineProgress(said.append))
        with temporary_settings({PREFECT_API_URL: prefect_server.api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
            prepare(study=str(study))
        TERMINAL.reset(token)
        assert said[-1].startswith(f"{source}: 1 image is in more than one split, a leak: ")
        assert said[-1].endswith("; accuracy on such images is no accuracy on new ones.")
        monkeypatch.setenv("RAMPLINE_STORE", str(tmp_path / "store"))
    assert list(tmp_path.glob("store/data/photos-*/manifest.json"))


# Imported by every Python process: a pause between two tries is a short one.
IMPATIENT = """
import time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.05))
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_source_that_does_not_answer_at_first_is_tried_again(prefect_server, tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(path)
    content = Path(shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")).read_bytes()
    with serve(content, status=503) as server:

        def recover() -> None:
            while len(server.ranges) < 5:
                time.sleep(0.05)
            server.status = 0

        threading.Thread(target=recover, daemon=True).start()
        study, api = tmp_path / "photos.yaml", prefect_server.api
        data = f"{{source: 'url:{server.url}', image_size: 8, validation_fraction: 0.5}}"
        study.write_text(f"base: {{data: {data}}}\nruns: {{one: {{}}}}\n")
        with temporary_settings({PREFECT_API_URL: api.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
            assert prepare(study=str(study), return_state=True).is_completed()
    [tried] = api.post("/task_runs/filter", {"task_runs": {"name": {"any_": [f"prepare url:{server.url}"]}}})
    assert (tried["run_count"], len(server.ranges)) == (2, 6)
