import os
import signal
import subprocess
import sys

import psutil
import pytest

# A parent starts a child that must end with it; the child says that it is ready and does not heed SIGTERM.
CHILD = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from rampline.jobs.parent import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())], start_new_session=True).wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_parent(number):
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (child,) = psutil.Process(parent.pid).children()
        parent.send_signal(number)
    child.wait(timeout=2)


def test_a_process_whose_parent_is_gone_already_ends_at_once():
    # Process 1 is alive, but not the parent.
    finished = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, timeout=10, check=False)
    assert finished.returncode == -signal.SIGKILL
    assert finished.stdout == b""


def test_the_own_parent_is_left_alone():
    code = "import sys; from rampline.jobs.parent import end_with_parent as end; end(int(sys.argv[1])); print('alive')"
    finished = subprocess.run([sys.executable, "-c", code, str(os.getpid())], capture_output=True, check=True)
    assert finished.stdout == b"alive\n"
