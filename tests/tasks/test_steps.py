"""The tasks of the flows, as far as they need no flow run."""

import os
import subprocess
import sys

import pytest
from command_line import prefect_settings
from prefect.states import Failed
from runs import SUPPORT

from rampline.errors import DatasetError, DownloadFailed, InputError
from rampline.study import load_study
from rampline.study.execution_file import Execution
from rampline.tasks.steps import open_execution, unless_ours
from rampline.tracking.reconciliation import PROCESS_TAG
from rampline.tracking.store import open_tracking

DELIVERS = """
import sys
import time
from pathlib import Path
from rampline.files import locked
with locked(Path(sys.argv[1]) / ".lock"):
    print("delivers", flush=True)
    time.sleep(1)
"""
AT_WORK = """
import sys
from pathlib import Path
from executions import begin
from rampline.jobs.lock import hold
from rampline.record.home import Home
home = Home(root=Path(sys.argv[1]))
folder = home.runs / "digits" / "e1"
folder.mkdir(parents=True)
with hold(folder):
    begin("digits", home, only=["baseline"])
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_an_execution_that_another_process_is_at_work_on_stays_its_own(tracked_home):
    folder = tracked_home.runs / "digits" / "e1"

    def owner() -> tuple[str, str]:
        run = open_tracking(tracked_home).get_run(Execution.open(folder).parent_run_id)
        return run.data.tags[PROCESS_TAG], (folder / "delivery.json").read_text()

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", AT_WORK, str(tracked_home.root)]
    with subprocess.Popen(command, env=environment, **pipes) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "at work\n"
        before = owner()
        refused = pytest.raises(InputError, match=f"e1 is in use by process {other.pid} on ")
        with refused, open_execution(Execution.open(folder), "rampline run digits"):
            pass
        assert owner() == before
        other.stdin.close()


def test_who_delivers_what_a_killed_process_has_left_is_waited_for(tracked_home, prefect_server):
    folder, study = tracked_home.runs / "digits" / "e1", load_study("digits", only=["baseline"])
    execution = Execution(folder=folder, study=study, home=tracked_home)
    delivering = [sys.executable, "-c", DELIVERS, str(execution.folder)]
    with prefect_settings(prefect_server.prefect):  # it would start a server of its own
        with open_execution(execution, "rampline run digits"):
            pass
        with subprocess.Popen(delivering, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "delivers\n"
            with open_execution(Execution.open(execution.folder), "rampline run digits --resume"):
                assert other.wait(5) == 0


@pytest.mark.parametrize("error, again", [(DownloadFailed(), True), (DatasetError(), False), (OSError(), True)])
def test_what_the_network_did_is_tried_again(error, again):
    assert unless_ours(None, None, Failed(data=error)) == again  # type: ignore[arg-type]  # it looks at the state alone
