"""Running a few steps of any strategy as real processes."""

import json

import numpy as np
import pytest
from runs import SUPPORT, Steps, run_role_scripts

from rampline.config import RunConfig, to_dict
from rampline.data.dataset import PreparedDataset
from rampline.jobs.roles import local_tasks

SCRIPT = SUPPORT / "steps_process.py"


@pytest.fixture(scope="session")
def run_steps(digits: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """`run_steps(config, steps)` trains in one process per synchronous role and returns what each wrote."""

    def run(config: RunConfig, steps: int) -> list[dict[str, np.ndarray]]:
        tasks, folder = local_tasks(config), tmp_path_factory.mktemp("steps")
        outputs = [folder / f"{task.name}.npz" for task in tasks]
        arguments = [json.dumps(to_dict(config)), str(digits.directory), str(steps)]
        run_role_scripts([[str(SCRIPT), *arguments, str(output)] for output in outputs], tasks)
        return [dict(np.load(output)) for output in outputs]

    return run
