from rampline.config import DataConfig
from rampline.data.preparation import locate_prepared, prepare_dataset
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
    prepared = prepare_dataset(config, Home.from_environment())
    key = key_of(config)
    assert key is not None
    assert key == key_of(DataConfig(source="digits", limit=5))
    assert key_of(DataConfig(source="digits", limit=6)) is None
    prepared.directory.rename(tmp_path / "gone")
    assert key_of(config) is None


def test_artifact_keys_are_lower_case_letters_digits_and_dashes():
    assert artifact_key("data-report", "folder:/data/Cats & Dogs") == "data-report-folder-data-cats-dogs"
