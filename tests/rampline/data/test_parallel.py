import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from folder_content import read_tree

from rampline.data import parallel
from rampline.data.parallel import CAN_FORK, in_chunks, worker_processes
from rampline.devices import available_cores
from rampline.errors import DatasetError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(available_cores() < 2 or not CAN_FORK, reason="prepares in threads here"),
]

# Prepares argv[1] in argv[2] with each storage: first in processes, which must be started first, then in threads.
BOTH_WAYS = """
import json, sys, warnings
warnings.simplefilter("error", ResourceWarning)
from pathlib import Path
import psutil
from rampline.config import DataConfig
from rampline.data.ingest import Reporter, store_dataset
from rampline.record.home import Home
for may_fork in (True, False):
    for cache in ("memory", "disk", "none"):
        children = []
        count = lambda done, total: children.append(len(psutil.Process().children()))
        config = DataConfig(source=sys.argv[1], image_size=20, cache=cache, limit=130, max_undecodable_share=0.1)
        home = Home(root=Path(sys.argv[2], str(may_fork)))
        directory = store_dataset(config, home, Reporter(progress=count, log=lambda line: None), may_fork=may_fork)
        print(json.dumps([str(directory), min(children), max(children), len(psutil.Process().children())]))
"""
# Changes an image of argv[1] when all have been read once, and removes a later one; the error is printed.
CHANGED = """
import sys
from pathlib import Path
from rampline.config import DataConfig
from rampline.data.ingest import Reporter, store_dataset
from rampline.errors import DatasetError
from rampline.record.home import Home
images = sorted(Path(sys.argv[1]).rglob("*.*"))
def change(done, total):
    if done == len(images):
        images[70].write_bytes(b"another")
        images[200].unlink()
try:
    reporter = Reporter(progress=change, log=lambda line: None)
    config = DataConfig(source=f"folder:{sys.argv[1]}", image_size=8)
    store_dataset(config, Home(root=Path(sys.argv[2])), reporter, may_fork=True)
except DatasetError as error:
    print(error)
"""


def times_ten(number):
    time.sleep(0.002 * (number % 2 == 0))
    return number * 10


def seven_over(number):
    return 7 // (3 - number)


def process_id(number):
    time.sleep(0.01)
    return os.getpid()


def wait_long(number):
    time.sleep(60)


def large(number):
    return bytes([number % 256]) * 3_000_000


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" not in done.stderr
    return done.stdout.splitlines()


@pytest.fixture(params=["threads", "processes"])
def map_in_order(request):
    if request.param == "threads":
        yield parallel.map_in_order
        return
    with worker_processes() as map_in_order:
        yield map_in_order


def test_results_come_in_order(map_in_order):
    assert list(map_in_order(times_ten, range(50))) == [number * 10 for number in range(50)]


def test_all_processes_work_and_end():
    with worker_processes() as map_in_order:
        processes = set(map_in_order(process_id, range(20)))
        assert len(processes) == available_cores()
        assert os.getpid() not in processes
    assert not any(psutil.pid_exists(process) for process in processes)


def test_items_are_taken_only_as_needed(map_in_order):
    taken = []
    results = map_in_order(times_ten, (taken.append(number) or number for number in range(10_000)))
    for _ in range(5):
        next(results)
    assert len(taken) <= 5 + 2 * available_cores()


def test_chunks():
    assert list(in_chunks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(in_chunks([], 3)) == []


def test_large_items_and_results_block_nobody():
    items = [bytes([number]) * 1_000_000 for number in range(12)]
    with worker_processes() as map_in_order:
        assert list(map_in_order(len, items)) == [1_000_000] * 12
        for number, result in enumerate(map_in_order(large, range(12))):
            assert result == bytes([number]) * 3_000_000


def test_an_error_is_raised_in_its_turn(map_in_order):
    results = map_in_order(seven_over, range(10))
    assert [next(results) for _ in range(3)] == [2, 3, 7]
    with pytest.raises(ZeroDivisionError) as caught:
        next(results)
    assert map_in_order is parallel.map_in_order or "in seven_over" in str(caught.value.__cause__)


def test_a_process_that_dies_is_said_at_once():
    started = time.monotonic()
    with worker_processes() as map_in_order:
        processes = set(map_in_order(process_id, range(20)))
        results = map_in_order(wait_long, range(10))
        os.kill(max(processes), signal.SIGTERM)
        with pytest.raises(DatasetError, match="a worker process of the preparation was killed"):
            next(results)
    assert time.monotonic() - started < 10
    assert not any(psutil.pid_exists(process) for process in processes)


@pytest.mark.long
def test_the_prepared_directory_is_that_of_threads(make_folder, tmp_path):
    root = make_folder({"train/a": 140, "train/b": 120, "test/a": 40, "test/b": 41})
    (root / "train/a/011.jpg").write_bytes(b"no image")
    (root / "test/b/empty.png").touch()
    prepared = [json.loads(line) for line in run(BOTH_WAYS, f"folder:{root}", tmp_path)]
    for (directory, fewest, most, left), (expected, none, *_) in zip(prepared[:3], prepared[3:], strict=True):
        assert (fewest, most, left, none) == (available_cores(), available_cores(), 0, 0)
        found, expected = (read_tree(tmp_path.joinpath(name)) for name in (directory, expected))
        assert len(found) > 8
        assert found == expected
        assert found["undecodable.csv"].decode().count("\n") == 3


@pytest.mark.long
def test_an_image_that_changes_meanwhile_is_named(make_folder, tmp_path):
    root = make_folder({"a": 120, "b": 130})
    changed = sorted(root.rglob("*.*"))[70].relative_to(root)
    assert run(CHANGED, root, tmp_path / "home") == [
        f"{changed} changed while it was being prepared: prepare again when nothing writes there"
    ]
