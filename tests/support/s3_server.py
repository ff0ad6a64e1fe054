"""moto's S3 server on loopback, in a process of its own, with a bucket for each test; boto3 looks into it, too."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

# It stops, and starts again at the same address with all that it holds, when a line says so.
SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = server.get_host_and_port()
print(*address, flush=True)
for line in sys.stdin:
    if line == "stop\\n":
        server.stop()
        server._server.server_close()
    else:
        server._ip_address, server._port = address
        server.start()
    print(flush=True)
"""
VARIABLES = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


class S3:
    """A bucket of the server, and the prefix `pre/fix` in it."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        import boto3  # every test session loads this file

        self.server, self.bucket = server, bucket
        self.url, self.endpoint = f"s3://{bucket}/pre/fix", server.endpoint
        self.client: Any = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1")
        self.client.create_bucket(Bucket=bucket)

    def environment(self) -> dict[str, str]:
        """What leads there."""
        return {**VARIABLES, "AWS_ENDPOINT_URL": self.endpoint, "RAMPLINE_STORE": self.url}

    def keys(self, below: str = "") -> list[str]:
        """Of the objects below a key, sorted; without the empty ones that stand for folders."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"pre/fix/{below}")
        found = (item["Key"].removeprefix("pre/fix/") for page in pages for item in page.get("Contents", ()))
        return sorted(key for key in found if not key.endswith("/"))

    def overwrite(self, key: str, content: bytes) -> None:
        """Damage an object, or write one that nobody has described."""
        self.client.put_object(Bucket=self.bucket, Key=f"pre/fix/{key}", Body=content)

    def stop(self) -> None:
        """Connections are refused; what it holds stays."""
        self.server.tell("stop")

    def start(self) -> None:
        """At the same address."""
        self.server.tell("start")


class S3Server:
    """The process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        host, port = self._answer().split()
        self.endpoint = f"http://{host}:{port}"

    def tell(self, line: str) -> None:
        """`stop` or `start`, and wait until it has."""
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Up within seconds, with the first test that asks."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield S3Server(process)
        process.kill()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An empty bucket, which the environment names."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    made = S3(s3_server, f"b-{time.time_ns()}")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made
