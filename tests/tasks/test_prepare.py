from rampline.config import DataConfig
from rampline.data.preparation import prepare_dataset
from rampline.record.home import Home
from rampline.tasks.page import artifact_key
from rampline.tasks.steps import cache_key


def test_cached_preparation_holds_as_long_as_the_folder_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    config = DataConfig(source="digits", limit=5)
    assert cache_key(None, {"config": config}) is None
    prepared = prepare_dataset(config, Home.from_environment())
    key = cache_key(None, {"config": config})
    assert key is not None
    assert key == cache_key(None, {"config": DataConfig(source="digits", limit=5)})
    assert cache_key(None, {"config": DataConfig(source="digits", limit=6)}) is None
    prepared.directory.rename(tmp_path / "gone")
    assert cache_key(None, {"config": config}) is None


def test_a_source_that_is_missing_has_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    assert cache_key(None, {"config": DataConfig(source=f"folder:{tmp_path}/nosuch")}) is None


def test_artifact_keys_are_lower_case_letters_digits_and_dashes():
    assert artifact_key("data-report", "folder:/data/Cats & Dogs") == "data-report-folder-data-cats-dogs"
