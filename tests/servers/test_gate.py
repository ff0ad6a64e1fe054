"""The gate: what comes from elsewhere, or without the login, never reaches the application behind it."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator

import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from rampline.devices import free_ports
from rampline.servers.gate import Gate

LOGIN = "rampline:correct-horse"
BASIC = f"Basic {b64encode(LOGIN.encode()).decode()}"
PROXY = "flows.example.org"


async def application(scope, receive, send):
    """Answers every request; greets on a websocket after the first message, as Prefect does."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"reached"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
        if (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": "reached"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    [port] = free_ports(1)
    gate = Gate(application, proxies=[PROXY], own=["machine"], login=LOGIN)
    server = uvicorn.Server(uvicorn.Config(gate, port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join()


def status(port: int, path: str = "/api/flows", *, method: str = "POST", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", b"{}", named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_the_login_gets_in(port):
    assert status(port) == 401
    assert status(port, Authorization=BASIC) == 200
    for wrong in ("Basic", "Basic cmFtcGxpbmU6", "Basic ä", f"Bearer {BASIC[6:]}", f"{BASIC}x"):
        assert status(port, Authorization=wrong) == 401, wrong
    assert [status(port, path, method="GET") for path in ("/api/health", "/", "/api/healthy")] == [200, 401, 401]
    assert status(port, "/api/health") == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "evil@127.0.0.1", "127.0.0.1:80:80", ""]
)
def test_a_foreign_host_is_refused_with_and_without_the_login(port, host):
    assert status(port, Host=host, Authorization=BASIC) == 403
    assert status(port, "/api/health", method="GET", Host=host) == 403


def test_its_own_names_are_not(port):
    for host in ("localhost", "LOCALHOST:1234", "[::1]", f"[::1]:{port}", PROXY, f"{PROXY}:8443", f"machine:{port}"):
        assert status(port, Host=host, Authorization=BASIC) == 200, host


def test_a_foreign_origin_is_refused_with_and_without_the_login(port):
    # On port 80 of this machine, too, there may be another user's program.
    here = ("http://localhost", "http://127.0.0.1", "http://machine", f"http://127.0.0.1:{port + 1}")
    for origin in ("http://evil.example", "null", "http://127.0.0.1.evil.example", "", *here):
        assert status(port, Origin=origin, Authorization=BASIC) == 403, origin
        assert status(port, "/api/health", method="GET", Origin=origin) == 403, origin
    assert status(port, Origin=f"http://127.0.0.1:{port}", Authorization=BASIC) == 200
    # Through a tunnel with another port, and a proxy that keeps its name to itself.
    assert status(port, Host="localhost:9", Origin="http://localhost:9", Authorization=BASIC) == 200
    assert status(port, Origin=f"https://{PROXY}", Authorization=BASIC) == 200


def test_a_link_signs_in_and_leads_on_to_its_page_on_the_same_server(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/sign-in//evil.example/%0d%0aX:", headers={"Authorization": BASIC})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, f"//127.0.0.1:{port}//evil.example/%0d%0aX:")
    assert status(port, "/sign-in/deployments", method="GET") == 401


def test_a_page_elsewhere_may_only_link_here(port):
    link = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    for site in ("cross-site", "same-site"):
        assert status(port, method="GET", Sec_Fetch_Site=site, Authorization=BASIC, **link) == 200
        assert status(port, Sec_Fetch_Site=site, Authorization=BASIC, **link) == 403
        framed = link | {"Sec_Fetch_Dest": "iframe"}
        assert status(port, method="GET", Sec_Fetch_Site=site, Authorization=BASIC, **framed) == 403
        assert status(port, method="GET", Sec_Fetch_Site=site, Authorization=BASIC, Sec_Fetch_Mode="no-cors") == 403
    assert status(port, Sec_Fetch_Site="same-origin", Authorization=BASIC) == 200


def talk(port: int, first: str = "hello", **options) -> str:
    with connect(f"ws://127.0.0.1:{port}/api/events/in", **options) as socket:
        socket.send(first)
        return str(socket.recv(timeout=10))


def test_a_websocket_needs_the_login_in_its_headers_or_as_prefects_first_message(port):
    assert talk(port, additional_headers={"Authorization": BASIC}) == "reached"
    assert talk(port, json.dumps({"type": "auth", "token": LOGIN}), subprotocols=["prefect"]) == "reached"
    for wrong in ("hello", "{}", "[]", '{"token": null}', '{"token": "rampline:"}'):
        with pytest.raises(ConnectionClosed):
            talk(port, wrong, subprotocols=["prefect"])
    refused = [
        {},
        {"additional_headers": {"Authorization": BASIC}, "origin": "http://evil.example"},
        {"additional_headers": {"Authorization": BASIC}, "origin": "http://localhost"},
        {"additional_headers": {"Authorization": BASIC, "Host": "evil.example"}},
    ]
    for options in refused:
        with pytest.raises(InvalidStatus):
            talk(port, **options)
