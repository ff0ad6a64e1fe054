"""What a role does not import, and what it still can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rampline

# Prints the value that MLflow finds when a module, the first to be imported, imports it.
FIRST_LOOK = """
import importlib, os, sys

class Look:
    def find_spec(self, name, *_):
        if name == "mlflow":
            print(module, os.environ.get("MLFLOW_DISABLE_TELEMETRY"), flush=True)
            os._exit(0)

for module in sys.argv[1:]:
    if not (child := os.fork()):
        sys.meta_path.insert(0, Look())
        importlib.import_module(module)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.long
def test_importing_tensorflow_for_a_role_leaves_out_what_no_role_uses() -> None:
    code = (
        "import gc, sys; from rampline.imports import UNUSED_BY_ROLES, import_tensorflow; import_tensorflow();"
        "assert 'keras' in sys.modules and not set(UNUSED_BY_ROLES) & set(sys.modules) and gc.isenabled();"
        "import sklearn.metrics, pandas, matplotlib.figure"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_preloading_does_not_wait_and_leaves_out_what_is_not_there() -> None:
    code = (
        "import gc, sys, threading; from rampline.imports import preload; preload('no_such_module', 'sqlalchemy');"
        "assert 'sqlalchemy.orm' not in sys.modules, 'it was not imported in this thread';"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'preload'];"
        "assert 'sqlalchemy' in sys.modules and gc.isenabled()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_whatever_imports_mlflow_first_turns_its_telemetry_off() -> None:
    root = Path(rampline.__file__).parent
    files = [file for file in sorted(root.rglob("*.py")) if " mlflow" in file.read_text()]
    names = [".".join(("rampline", *file.relative_to(root).with_suffix("").parts)) for file in files]
    unset = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    command = [sys.executable, "-c", FIRST_LOOK, *names]
    told = subprocess.run(command, env=unset, capture_output=True, text=True, check=True, timeout=120).stdout
    seen = dict(line.split() for line in told.splitlines())
    assert {"rampline.execution", "rampline.tracking.store", "rampline.training.saved_model"} <= set(seen)
    assert set(seen.values()) == {"true"}
