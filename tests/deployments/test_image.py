"""The Dockerfile, what reaches it, and its health check."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deployment_files import DEPLOYMENTS, without_secrets
from file_server import serve

ROOT = DEPLOYMENTS.parent
DOCKERFILE = DEPLOYMENTS / "Dockerfile"


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("no hadolint: the Dockerfile is not linted (make setup)")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_is_installed_is_locked_and_pinned():
    text = DOCKERFILE.read_text()
    assert text.count("uv sync --frozen --no-dev") == text.count("uv sync") == 2
    [uv] = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"ARG UV_TAG={uv}\n" in text
    assert re.search(r"^ARG PYTHON_TAG=3\.11\.\d+-slim-\w+$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == [
        "ghcr.io/astral-sh/uv:${UV_TAG}",
        "python:${PYTHON_TAG}",
        "python:${PYTHON_TAG}",
    ]
    user = text.rindex("USER 10001:10001")
    assert user < text.index("ENTRYPOINT")


def test_everything_else_stays_out_of_the_image():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    for rule in kept:
        assert list(ROOT.glob(rule)), rule
    needed = (
        "pyproject.toml",
        "uv.lock",
        "README.md",
        "LICENSE",
        "prefect.yaml",
        "rampline",
        "flows",
        "tasks",
        "servers",
    )
    assert set(needed) < set(kept)
    assert not any(name in rule for rule in kept for name in (".env", ".venv", ".git", "tests"))


def test_health_check():
    def check(url: str = "") -> subprocess.CompletedProcess[str]:
        environment = without_secrets() | ({"RAMPLINE_HEALTH_URL": url} if url else {})
        command = [sys.executable, str(DEPLOYMENTS / "health.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert check().returncode == 0
    with serve(b"well") as server:
        assert check(server.url).returncode == 0
        server.status = 500
        assert check(server.url).returncode == 1
    gone = check(server.url)
    assert gone.returncode == 1
    assert len(gone.stderr.splitlines()) == 1
