"""A registered model behind MLflow's own server, asked by curl: as docs/operations.md says."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rampline.devices import free_ports


def ask_service(
    model: str, images: np.ndarray, *, programs: Path, environment: Mapping[str, str], folder: Path
) -> np.ndarray:
    """Serve the model, and ask for its logits of (n, height, width, channels) images; `programs` has `mlflow`."""
    (folder / "images.json").write_text(json.dumps({"instances": images.tolist()}))
    address = ("--host", "127.0.0.1", "--port", str(free_ports(1)[0]))
    server = subprocess.Popen(
        [programs / "mlflow", "models", "serve", "-m", model, "--env-manager", "local", *address],
        cwd=folder,
        env={**environment, "PATH": f"{programs}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{address[-1]}"
        ready = ["curl", "-sf", "--retry", "120", "--retry-connrefused", "--retry-delay", "1", f"{url}/ping"]
        subprocess.run(ready, check=True, timeout=150, stdout=subprocess.DEVNULL)
        ask = ["curl", "-sf", "-H", "content-type: application/json", "-d", "@images.json", f"{url}/invocations"]
        said = subprocess.run(ask, cwd=folder, check=True, capture_output=True, timeout=60).stdout
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)
    return np.array(json.loads(said)["predictions"])
