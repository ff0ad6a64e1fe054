import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import psutil
import pytest

from rampline.config import DataConfig
from rampline.data.parallel import CAN_FORK
from rampline.data.preparation import locate_prepared, prepare_dataset
from rampline.devices import available_cores
from rampline.errors import DatasetError

# Forks, as under `rampline run`, but for the process that a test kills with its parent: that one has no fork server.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]
# Prepares argv[1] in argv[2] and says how far it is.
PREPARE = """
import json, sys
from pathlib import Path
from rampline.config import DataConfig
from rampline.devices import available_cores
from rampline.data.preparation import prepare_dataset
from rampline.record.home import Home
prepare_dataset(
    DataConfig(**json.loads(sys.argv[1])), Home(root=Path(sys.argv[2])),
    on_progress=lambda done, total: print(done, total, flush=True),
)
"""


@pytest.fixture
def large_source(make_folder, make_image):
    """Long enough to be interrupted: many links to a few photographs."""
    root = make_folder({"a": 0, "b": 0})
    for folder in ("a", "b"):
        (root / folder / "0.jpg").write_bytes(make_image(ord(folder), (400, 500), "jpg"))
        for index in range(1, 200):
            os.link(root / folder / "0.jpg", root / folder / f"{index}.jpg")
    return DataConfig(source=f"folder:{root}", image_size=64)


processes_only = pytest.mark.skipif(available_cores() < 2 or not CAN_FORK, reason="prepares in threads here")


def processes_of():
    """The preparation process, then its workers. (The tests' shared server is a child of ours, too.)"""
    found = [child for child in psutil.Process().children(recursive=True) if os.getsid(child.pid) == child.pid]
    (process,) = [child for child in found if "rampline-prepare-" in " ".join(child.cmdline())]
    return [process, *process.children(recursive=True)]


def asides(home):
    return [path for path in home.data.glob(".*") if path.is_dir()]


def test_prepared_by_a_process_and_found_again(home):
    config, progress, lines = DataConfig(), [], []
    assert locate_prepared(config, home) is None
    assert not home.root.exists()
    dataset = prepare_dataset(config, home, on_progress=lambda *values: progress.append(values), log=lines.append)
    assert dataset.splits == {"train": 1292, "validation": 145, "test": 360}
    assert progress == sorted(progress)
    assert progress[-1] == (3594, 3594)
    assert lines[:4] == [
        f"preparing digits in {home.data}",
        "reading 1797 images of digits",
        f"prepared {dataset.directory}",
        "train: 1,292 images: 0 (128), 1 (131), 2 (128), 3 (131), 4 (130), 5 (130), 6 (130), 7 (129), 8 (125), 9 (130)",
    ]
    assert [line.split(" images")[0] for line in lines[4:]] == ["validation: 145", "test: 360"]
    assert sorted(path.name for path in home.data.iterdir()) == [".lock", dataset.directory.name, "index"]
    started = time.monotonic()
    assert prepare_dataset(config, home, log=lines.append) == dataset == locate_prepared(config, home)
    assert time.monotonic() - started < 0.5
    assert lines[-1] == f"prepared already: {dataset.directory}"


def test_two_at_once_prepare_it_once(home, make_folder):
    config, lines = DataConfig(source=f"folder:{make_folder({'a': 20, 'b': 20})}"), []
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: prepare_dataset(config, home, log=lines.append), range(2))
    assert first == second
    assert sum(line.startswith("prepared /") for line in lines) == 1
    assert sum(line.startswith("prepared already: /") for line in lines) == 1
    assert asides(home) == []


def test_a_source_that_is_wrong_starts_and_writes_nothing(home, tmp_path):
    with pytest.raises(DatasetError, match="does not exist"):
        prepare_dataset(DataConfig(source=f"folder:{tmp_path}/nowhere"), home)
    assert not home.root.exists()


@pytest.mark.long
def test_an_unexpected_failure_is_one_line_and_keeps_its_log(home):
    home.data.mkdir(parents=True)
    (home.data / "index").touch()
    with pytest.raises(
        DatasetError, match=r"preparing digits ended with status 1: (FileExists|NotADirectory)Error.*\(log: /\S+.log\)$"
    ) as caught:
        prepare_dataset(DataConfig(), home)
    assert "\n" not in str(caught.value)
    (log,) = (home.data / "logs").iterdir()
    assert "Traceback" in log.read_text()


@pytest.mark.long
def test_an_interrupt_ends_the_process_and_leaves_nothing(home, large_source):
    processes = []

    def interrupt(done, total):
        if done > total / 2 + 50:
            assert asides(home)
            processes.extend(processes_of())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_dataset(large_source, home, on_progress=interrupt)
    assert psutil.wait_procs(processes, timeout=1)[1] == []
    assert asides(home) == []
    assert locate_prepared(large_source, home) is None


@processes_only
@pytest.mark.parametrize(
    ("victim", "message"),
    [
        (1, r"^a worker process of the preparation was killed, perhaps for want of memory; nothing was stored$"),
        (0, r"^preparing folder:\S+ was ended by signal 9 \(log: "),
    ],
)
def test_a_kill_in_the_middle_is_one_line_and_leaves_no_process(home, large_source, victim, message):
    """Of a worker, and of the preparation process itself."""
    processes = []

    def kill(done, total):
        if done > total / 2 + 50 and not processes:
            processes.extend(processes_of())
            assert len(processes) == 1 + available_cores()
            processes[victim].kill()

    with pytest.raises(DatasetError, match=message):
        prepare_dataset(large_source, home, on_progress=kill)
    assert psutil.wait_procs(processes, timeout=3)[1] == []
    assert len(asides(home)) == (0 if victim else 1)
    assert locate_prepared(large_source, home) is None


@processes_only
def test_sigterm_ends_the_workers_and_cleans_up(home, large_source):
    processes = []

    def terminate(done, total):
        if done > total / 2 + 50 and not processes:
            processes.extend(processes_of())
            processes[0].terminate()

    started = time.monotonic()
    with pytest.raises(DatasetError, match=r"^preparing folder:\S+ ended with status 143"):
        prepare_dataset(large_source, home, on_progress=terminate)
    assert len(processes) == 1 + available_cores()
    assert psutil.wait_procs(processes, timeout=0)[1] == []
    assert asides(home) == []
    assert time.monotonic() - started < 30


@pytest.mark.long
def test_a_killed_parent_takes_it_along_and_the_next_one_cleans_up(home, large_source, store):
    command = [sys.executable, "-c", PREPARE, json.dumps(asdict(large_source)), str(home.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            done, total = map(int, line.split())
            if done > total / 2 + 50:
                break
        (child,) = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGKILL)
    child.wait(timeout=3)
    assert len(asides(home)) == 1
    assert locate_prepared(large_source, home) is None
    store(**(asdict(large_source) | {"limit": 2}))
    assert asides(home) == []
