"""A small real server."""

import http.server
import threading
from collections.abc import Iterator

import pytest


class NoPage(http.server.BaseHTTPRequestHandler):
    """Answers with 404, and keeps no log."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def http_server() -> Iterator[str]:
    """Address of a server that has no page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoPage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
