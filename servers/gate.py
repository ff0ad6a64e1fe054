"""What stands before our Prefect and MLflow servers: it lets in who knows the secret, from no page but their own.

A program on this machine, or a web page in the user's browser, can send requests to a port of loopback. Both servers
would obey: Prefect starts programs for any client. So a request must have a `Host` that is one of the server's names
(else a page could give its own name this machine's address: DNS rebinding), an `Origin`, where it has one, that is the
server's own, and the login. A browser remembers a login (HTTP Basic) for one origin, port included; a cookie would go
to all ports of the machine, those of other users too.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rampline.servers.addresses import ALLOWED_HOSTS, LOCALHOST, OWN_HOSTS, given_hosts
from rampline.servers.secret import LOGIN, SIGN_IN

# Whether a server is there is no secret.
OPEN = ("/api/health", "/health", "/version")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:@/\[\]]+)(:\d+)?", re.IGNORECASE)
HOW = b"a login is needed: `rampline status` in a terminal prints the link that signs in\n"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI application around another one.

    Args:
        app: what is guarded.
        proxies: names that a proxy before the server has, on a port that is not known here.
        own: names of the server besides those of loopback.
        login: `USER:PASSWORD` to ask for; empty for none.
    """

    def __init__(self, app: App, *, proxies: list[str], own: list[str], login: str) -> None:
        self._app, self._login = app, login.encode()
        self._proxies = {host.lower() for host in proxies}
        self._hosts = self._proxies | {host.lower() for host in (*LOCALHOST, *own)}

    @classmethod
    def from_environment(cls, app: App) -> Gate:
        """With the names in `RAMPLINE_ALLOWED_HOSTS` and `RAMPLINE_OWN_HOSTS`, and the login in
        `RAMPLINE_SERVER_LOGIN`.
        """
        proxies, own = (given_hosts(os.environ.get(name, "")) for name in (ALLOWED_HOSTS, OWN_HOSTS))
        return cls(app, proxies=proxies, own=own, login=os.environ.get(LOGIN, ""))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse, sign in, or pass on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_own(headers.get("host", ""), headers.get("origin")) or _is_from_elsewhere(scope, headers):
            await _refuse(scope, receive, send, 403, b"not from here: see RAMPLINE_ALLOWED_HOSTS\n")
        elif not self._login or self._knows_login(headers) or _is_open(scope):
            await self._let_in(scope, receive, send, headers["host"])
        elif "prefect" in scope.get("subprotocols", ()):
            await self._app(scope, self._after_login(receive), send)
        else:
            await _refuse(scope, receive, send, 401, HOW)

    async def _let_in(self, scope: Message, receive: Receive, send: Send, host: str) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{SIGN_IN}/"):
            page = scope["raw_path"].removeprefix(SIGN_IN.encode())
            await _answer(send, 303, b"", (b"location", b"//" + host.encode() + page))
        else:
            await self._app(scope, receive, send)

    def _is_own(self, host: str, origin: str | None) -> bool:
        """Whether both are the server's; a tunnel may have another port, and a proxy may pass on its own name."""
        scheme, _, page = (f"http://{host}" if origin is None else origin).lower().partition("://")
        is_own_page = page == host.lower() or page in self._proxies
        return scheme in ("http", "https") and is_own_page and _name(host) in self._hosts

    def _knows_login(self, headers: dict[str, str]) -> bool:
        expected = b"Basic " + base64.b64encode(self._login)
        return hmac.compare_digest(headers.get("authorization", "").encode(), expected)

    def _after_login(self, receive: Receive) -> Receive:
        """For Prefect's clients, which log in to a websocket by their first message."""
        is_in = False

        async def receive_after_login() -> Message:
            nonlocal is_in
            message = await receive()
            if message["type"] != "websocket.receive" or is_in:
                return message
            is_in = hmac.compare_digest(_token(message), self._login)
            return message if is_in else {"type": "websocket.disconnect", "code": 1008}

        return receive_after_login


def _is_from_elsewhere(scope: Message, headers: dict[str, str]) -> bool:
    """Whether a browser says that a page of another origin asks for something else than to be left for this one."""
    if scope["type"] != "http" or headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return not (is_link and scope["method"] == "GET")


def _is_open(scope: Message) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in OPEN


def _name(host: str) -> str:
    """Without the port."""
    found = HOST.fullmatch(host)
    return found[1].lower() if found else ""


def _token(message: Message) -> bytes:
    try:
        return str(json.loads(message.get("text") or message.get("bytes") or "")["token"]).encode()
    except (ValueError, TypeError, KeyError):
        return b""


async def _refuse(scope: Message, receive: Receive, send: Send, status: int, text: bytes) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        asks = [(b"www-authenticate", b'Basic realm="rampline"')] if status == 401 else []
        await _answer(send, status, text, *asks)


async def _answer(send: Send, status: int, text: bytes, *headers: tuple[bytes, bytes]) -> None:
    plain = (b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": text})
