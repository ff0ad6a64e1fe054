"""moto's S3 server on loopback, with a bucket for each test; boto3 looks into it from outside."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

VARIABLES = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


class S3:
    """A bucket of the server, and the prefix `pre/fix` in it."""

    def __init__(self, server: ThreadedMotoServer, bucket: str) -> None:
        import boto3

        self.server, self.bucket = server, bucket
        self.host, self.port = server.get_host_and_port()
        self.url, self.endpoint = f"s3://{bucket}/pre/fix", f"http://{self.host}:{self.port}"
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
        self.server.stop()
        assert self.server._server
        self.server._server.server_close()

    def start(self) -> None:
        """At the same address."""
        self.server._ip_address, self.server._port = self.host, self.port
        self.server.start()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ThreadedMotoServer]:
    """A thread of this process."""
    from moto.server import ThreadedMotoServer  # a second: every test session loads this file

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3:
    """An empty bucket, which the environment names."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    made = S3(s3_server, f"b-{time.time_ns()}")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made
