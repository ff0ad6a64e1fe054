"""A real MLflow server on a free loopback port that can be killed and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rampline.devices import free_ports
from rampline.jobs.waiting import wait_until
from rampline.servers.running import answers

START_SECONDS = 60


class MlflowServer:
    """`mlflow server` over a sqlite database in `folder`; not started yet."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = folder / "mlflow.db"
        self._folder = folder

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.database}"]
        command += ["--artifacts-destination", str(self._folder / "mlartifacts")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with open(self._folder / "mlflow-server.log", "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        assert wait_until(lambda: answers(f"{self.uri}/health"), START_SECONDS)

    def kill(self) -> None:
        """`kill -9` of all its processes; nothing if it does not run."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
