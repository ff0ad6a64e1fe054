import pytest

from rampline.config import DataConfig
from rampline.data import ingest
from rampline.data.ingest import choose_by_size
from rampline.data.preparation import locate_prepared

GIB = 2**30


@pytest.mark.parametrize(
    "size, memory, disk, cache",
    [(GIB, 8 * GIB, 0, "memory"), (GIB + 1, 8 * GIB, 5 * GIB, "disk"), (GIB + 1, 8 * GIB, 4 * GIB, "none")],
)
def test_the_quickest_storage_that_fits(size, memory, disk, cache):
    assert choose_by_size(size, memory=memory, disk=disk) == cache


def test_the_choice_is_made_once_and_is_the_dataset_of_that_cache(store, make_folder):
    config = {"source": f"folder:{make_folder({'a': 3, 'b': 3})}", "image_size": 8}
    auto = store(**config, cache="auto")
    assert auto.storage == "tensor"
    assert any(line.startswith("data.cache=auto: memory (") for line in store.lines)
    assert locate_prepared(DataConfig(**config, cache="auto"), store.home) == auto
    assert store(**config, cache="memory") == auto
    assert not any(line.startswith("warning: ") for line in store.lines)
    assert store(**config, cache="disk").storage == "raw_files"
    # As if there had been no room: what is prepared already decides.
    del store.lines[:]
    assert store(**config, cache="auto") == auto
    assert store.lines == [f"prepared already: {auto.directory}"]


def test_images_that_may_not_fit_into_memory_are_told_of(store, make_folder, monkeypatch):
    monkeypatch.setattr(ingest, "available_bytes", lambda: 8 * 6 * 8 * 8 * 3 - 1)
    store(source=f"folder:{make_folder({'a': 3, 'b': 3})}", image_size=8, cache="memory")
    (line,) = (line for line in store.lines if line.startswith("warning: "))
    assert line.startswith("warning: data.cache=memory: these images may not fit into memory (0.00 GiB decoded; free ")
    assert line.endswith("; data.cache=auto would choose disk")
