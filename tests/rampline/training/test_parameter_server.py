"""Parameter server: where the variables are, that no update is lost, and what the chief counts."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from runs import SUPPORT, make_config, role_environment

from rampline.config import RunConfig, to_dict
from rampline.data.dataset import PreparedDataset
from rampline.jobs.roles import local_tasks
from rampline.record.run_directory import RunDirectory, RunIdentity

STEPS = 25


def run_chief(script: str, config: RunConfig, digits: PreparedDataset, folder: Path, *arguments: str) -> dict:
    """What the script of the chief, `SCRIPT CONFIG DATASET ARGUMENTS OUT`, wrote beside real servers."""
    directory, output = RunDirectory(folder / "run"), folder / "chief.npz"
    directory.create(config, RunIdentity(study="test", name="run", dataset=str(digits.directory)))
    chief, *servers = local_tasks(config)
    commands = [[str(SUPPORT / script), json.dumps(to_dict(config)), str(digits.directory), *arguments, str(output)]]
    commands += [["-m", "rampline.worker", str(directory.path)]] * len(servers)
    with open(folder / "log", "w") as log:
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
    assert status == 0, (folder / "log").read_text()[-2000:]
    return dict(np.load(output))


def test_variables_live_on_the_ps_and_every_step_is_counted(digits: PreparedDataset, tmp_path: Path) -> None:
    config = make_config("parameter_server", workers=2, parameter_servers=1)
    told = run_chief("steps_process.py", config, digits, tmp_path, str(STEPS))
    assert all("/job:ps/" in device for device in told["devices"])
    assert int(told["step"]) == STEPS
    assert int(told["iterations"]) == STEPS  # Keras' own counter would lose some, see make_iterations_atomic
    assert len(told["losses"]) == STEPS
    assert told["losses"][-5:].mean() < told["losses"][:5].mean()
    assert told["evaluated"][2] == digits.splits["validation"]


def test_an_overflow_skips_the_step_of_its_worker_and_halves_the_scale(digits: PreparedDataset, tmp_path: Path) -> None:
    config = make_config("parameter_server", model="small_models:smooth", workers=2, parameter_servers=1)
    told = run_chief("loss_scale_process.py", dataclasses.replace(config, precision="mixed_float16"), digits, tmp_path)
    assert told["updates"][5:8, 0].tolist() == [6, 6, 7]
    assert np.log2(told["scale"][:, 0]).tolist() == [10] * 3 + [11] * 3 + [10] * 4 + [11] * 4 + [12] * 4 + [13]
    assert (told["weights"][6] == told["weights"][5]).all()
    assert np.isfinite(told["weights"]).all()
