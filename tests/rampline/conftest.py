"""Running a few steps of any strategy as real processes."""

import json
import subprocess
import sys

import numpy as np
import pytest
from runs import SUPPORT, Steps, role_environment

from rampline.cluster.roles import local_tasks
from rampline.config import RunConfig, to_dict
from rampline.data.dataset import PreparedDataset

SCRIPT = SUPPORT / "steps_process.py"


@pytest.fixture(scope="session")
def run_steps(digits: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """`run_steps(config, steps)` trains in one process per synchronous role and returns what each wrote."""

    def run(config: RunConfig, steps: int) -> list[dict[str, np.ndarray]]:
        tasks, folder = local_tasks(config), tmp_path_factory.mktemp("steps")
        outputs = [folder / f"{task.name}.npz" for task in tasks]
        arguments = [json.dumps(to_dict(config)), str(digits.directory), str(steps)]
        processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments, str(output)],
                env={**role_environment(), "TF_CONFIG": task.to_json()},
                stderr=subprocess.PIPE,
                text=True,
            )
            for task, output in zip(tasks, outputs, strict=True)
        ]
        try:
            for process in processes:
                _, errors = process.communicate(timeout=240)
                assert process.returncode == 0, errors[-2000:]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [dict(np.load(output)) for output in outputs]

    return run
