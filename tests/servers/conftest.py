"""A small real server."""

from collections.abc import Iterator

import pytest
from file_server import serve


@pytest.fixture
def http_server() -> Iterator[str]:
    """Address of a server that has no page."""
    with serve(b"", status=404) as server:
        yield server.url.removesuffix("/images.zip")
