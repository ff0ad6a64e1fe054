"""What all tests share: a home of their own, and small prepared copies of the `digits` dataset."""

import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from runs import SUPPORT
from stored_data import store_here

from rampline.config import DataConfig
from rampline.config.sections import Cache
from rampline.data.dataset import PreparedDataset
from rampline.imports import importing
from rampline.jobs.fork_server import fork_server
from rampline.record.home import Home
from rampline.servers.environments import make_quiet

pytest_plugins = [
    "command_line",
    "stack",
    "own_prefect",
    "trained_runs",
    "tiers",
    "slurm_cluster",
    "slurm_jobs",
    "s3_server",
]

# As the command does it, before anything imports Prefect or TensorFlow: tests run commands in this process.
make_quiet()
# As it does, too: what many tests share, and what their forks write, gets into homes that are looked at.
os.umask(0o077)
# Roles, and whatever else a test starts, import networks from there.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])

# Somebody's own: tests that want a store have one on loopback.
os.environ.pop("RAMPLINE_STORE", None)

EXAMPLES_PER_CLASS = 12
# Of the mirrored replicas that are in the process of the tests.
VIRTUAL_DEVICES = 4


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All test files are imported: without the garbage collector, which then leaves what they hold alone."""
    with importing():
        return (yield)


def pytest_collection_finish() -> None:
    """Whatever test comes first: with its first operation TensorFlow makes its devices, once in a process."""
    if tf := sys.modules.get("tensorflow"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * VIRTUAL_DEVICES)


@pytest.fixture(scope="session", autouse=True)
def rampline_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """RAMPLINE_HOME of the whole session, so that no test writes into the folder it is started in."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMPLINE_HOME", str(root))
        yield root


@pytest.fixture(scope="session")
def forks() -> Iterator[None]:
    """Workers are forks of one process from now on, unless a test changes what TensorFlow reads when it is imported."""
    with fork_server():
        yield


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """A command that a test runs in this process narrows the umask of the process; the next test has the usual one."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def _prepare(root: Path, cache: Cache) -> PreparedDataset:
    return store_here(DataConfig(limit=EXAMPLES_PER_CLASS, cache=cache), Home(root=root))


@pytest.fixture(scope="session")
def digits(rampline_home: Path) -> PreparedDataset:
    """`digits` by the real preparation: 12 examples of each class in every split, (28, 28, 1), in memory."""
    return _prepare(rampline_home, "memory")


@pytest.fixture(scope="session")
def digits_by_cache(rampline_home: Path, digits: PreparedDataset) -> dict[str, PreparedDataset]:
    """The same examples in the storage of every `data.cache`."""
    return {"memory": digits} | {cache: _prepare(rampline_home, cache) for cache in ("disk", "none")}


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh MLflow database: its tables take 2.5 s to create."""
    from rampline.tracking.store import open_tracking  # MLflow: seconds

    home = Home(root=tmp_path_factory.mktemp("initialised"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        open_tracking(home)
    return home.tracking_database


@pytest.fixture
def tracked_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, initialised: Path) -> Home:
    """A home whose MLflow database exists, and is used."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = Home(root=tmp_path / "home")
    home.root.mkdir()
    shutil.copy(initialised, home.tracking_database)
    return home
