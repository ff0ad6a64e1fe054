"""Parameter server: where the variables are, that no update is lost, and what the chief counts."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from runs import SUPPORT, make_config, role_environment

from rampline.cluster.roles import local_tasks
from rampline.config import to_dict
from rampline.data.dataset import PreparedDataset
from rampline.run_directory import RunDirectory, RunIdentity

STEPS = 25


def test_variables_live_on_the_ps_and_every_step_is_counted(digits: PreparedDataset, tmp_path: Path) -> None:
    config = make_config("parameter_server", workers=2, parameter_servers=1)
    directory, output = RunDirectory(tmp_path / "run"), tmp_path / "chief.npz"
    directory.create(config, RunIdentity(study="test", name="run", dataset=str(digits.directory)))
    chief, *servers = local_tasks(config)
    arguments = [json.dumps(to_dict(config)), str(digits.directory), str(STEPS), str(output)]
    commands = [[str(SUPPORT / "steps_process.py"), *arguments]]
    commands += [["-m", "rampline.worker", str(directory.path)]] * len(servers)
    with open(tmp_path / "log", "w") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, *command], env={**role_environment(), "TF_CONFIG": task.to_json()}, stderr=log
            )
            for task, command in zip([chief, *servers], commands, strict=True)
        ]
        try:
            status = processes[0].wait(timeout=240)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert status == 0, (tmp_path / "log").read_text()[-2000:]
    told = np.load(output)
    assert all("/job:ps/" in device for device in told["devices"])
    assert int(told["step"]) == STEPS
    assert int(told["iterations"]) == STEPS  # Keras' own counter would lose some, see make_iterations_atomic
    assert len(told["losses"]) == STEPS
    assert told["losses"][-5:].mean() < told["losses"][:5].mean()
    assert told["evaluated"][2] == digits.splits["validation"]
