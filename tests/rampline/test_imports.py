"""What a role does not import, and what it still can."""

import subprocess
import sys

import pytest


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
