"""A web server on loopback that gives one file, and may do so badly."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def listen(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server on loopback, while it runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class FileServer:
    """What it gives, and what it was asked for.

    Attributes:
        content: of the file.
        break_after: bytes of an answer after which it ends, for each request in turn; whole answers after that.
        knows_ranges: whether it gives parts.
        tag: the entity tag.
        redirect: where it sends everybody instead.
        status: what it answers instead.
        pause_seconds: between blocks of 64 kB.
        ranges: the header `Range` of each request, empty where there is none.
        paths: what each request asked for; all get the same content.
    """

    content: bytes
    break_after: list[int] = field(default_factory=list)
    knows_ranges: bool = True
    tag: str = '"one"'
    redirect: str = ""
    status: int = 0
    pause_seconds: float = 0.0
    ranges: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range", "")
        self.ranges.append(asked)
        self.paths.append(request.path)
        if self.status or self.redirect:
            request.send_response(self.status or 302)
            request.send_header("Location", self.redirect)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start = int(re.sub(r"\D", "", asked) or 0)
        same = request.headers.get("If-Range", self.tag) == self.tag
        if asked and self.knows_ranges and same and start >= len(self.content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.content)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start = start if self.knows_ranges and same else 0
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.tag:
            request.send_header("ETag", self.tag)
        request.send_header("Content-Length", str(len(self.content) - start))
        request.end_headers()
        self._send(request, self.content[start:])

    def _send(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        content = content[: self.break_after.pop(0)] if self.break_after else content
        for at in range(0, len(content), 65536):
            try:
                request.wfile.write(content[at : at + 65536])
            except OSError:
                return
            time.sleep(self.pause_seconds)
        request.close_connection = True


@contextmanager
def serve(content: bytes, **ways: object) -> Iterator[FileServer]:
    """The server while it runs; `url` is its address with `/images.zip`."""
    files = FileServer(content=content, **ways)  # type: ignore[arg-type]

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            files.answer(self)

    with listen(Handler) as address:
        files.url = f"{address}/images.zip"
        yield files
