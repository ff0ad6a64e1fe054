"""A receiver of webhooks on loopback: what a chat's incoming webhook is for a notification."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Received:
    """Where it listens, and the JSON of every POST so far, with the path that it came to."""

    url: str
    posts: list[tuple[str, Any]] = field(default_factory=list)

    def texts(self) -> list[str]:
        return [body["text"] for _, body in self.posts]


@contextmanager
def receive_webhooks() -> Iterator[Received]:
    posts: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Received(url=f"http://127.0.0.1:{server.server_port}", posts=posts)
        finally:
            server.shutdown()
            thread.join(10)
