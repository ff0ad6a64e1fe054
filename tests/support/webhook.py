"""A receiver of webhooks on loopback: what a chat's incoming webhook is for a notification."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from file_server import QuietHandler, listen


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

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

    with listen(Handler) as address:
        yield Received(url=address, posts=posts)
