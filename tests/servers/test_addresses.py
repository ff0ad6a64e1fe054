"""Hosts, ports and passwords: what is refused, and how."""

import os
import socket
import urllib.request
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest

from rampline.errors import InputError
from rampline.servers import addresses
from rampline.servers.environments import Access
from rampline.servers.running import answers


@pytest.mark.parametrize(
    ("host", "address", "is_loopback", "url"),
    [
        ("127.0.0.1", "127.0.0.1", True, "http://127.0.0.1:80"),
        ("localhost", "127.0.0.1", True, "http://127.0.0.1:80"),
        ("127.0.0.2", "127.0.0.2", True, "http://127.0.0.2:80"),
        ("0.0.0.0", "0.0.0.0", False, "http://127.0.0.1:80"),
    ],
)
def test_hosts(host, address, is_loopback, url):
    assert addresses.resolve(host) == address
    assert addresses.is_loopback(address) is is_loopback
    assert addresses.url(address, 80) == url


def test_servers_of_this_machine_are_not_asked_through_a_proxy(http_server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)  # which keeps the proxies that there were
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org, .lan")
    assert not answers(f"{http_server}/health")
    for name, value in addresses.without_proxy(os.environ).items():
        monkeypatch.setenv(name, value)
    expected = ["example.org", ".lan", "localhost", "127.0.0.1", "::1", *addresses.own_addresses()]
    assert os.environ["no_proxy"].split(",") == list(dict.fromkeys(host.strip("[]") for host in expected))
    assert answers(f"{http_server}/health")
    assert addresses.without_proxy({"NO_PROXY": "*"}) == {"no_proxy": "*", "NO_PROXY": "*"}


def test_ipv6_stands_in_brackets(monkeypatch):
    assert addresses.url("::", 80) == "http://[::1]:80"
    assert addresses.is_loopback("::1")
    found = [(socket.AF_INET6, "fe80::1%eth0"), (socket.AF_INET6, "2001:db8::5"), (socket.AF_INET, "10.0.0.5")]
    entries = [SimpleNamespace(family=family, address=address) for family, address in found]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": entries})
    assert addresses.own_addresses() == ["10.0.0.5", "[2001:db8::5]"]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "198.51.100.7", "", "a b"])
def test_what_is_no_address_of_this_machine_is_refused(host):
    with pytest.raises(InputError, match="is no address"):
        addresses.resolve(host)


def test_a_taken_port_is_refused_with_its_holder_and_the_flag(http_server):
    port = urlsplit(http_server).port
    assert port is not None
    for address in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(InputError, match=rf"port {port} .* taken by another program .*with --mlflow-port"):
            addresses.check_free(address, port, flag="--mlflow-port")


def test_a_server_that_asks_for_no_login_may_be_used(prefect_server):
    url = prefect_server.prefect["PREFECT_API_URL"]
    with pytest.raises(
        InputError, match=rf"by a Prefect server \(process .*: set PREFECT_API_URL={url} to use that one"
    ):
        addresses.check_free("127.0.0.1", urlsplit(url).port, flag="--prefect-port")


def test_beyond_loopback_each_server_that_is_started_needs_a_password():
    nothing, prefect = Access(), Access(prefect="me:secret")
    nothing.check_for("0.0.0.0", starts_prefect=False, starts_mlflow=False)
    prefect.check_for("0.0.0.0", starts_prefect=True, starts_mlflow=False)
    with pytest.raises(InputError, match="PREFECT_SERVER_API_AUTH_STRING"):
        nothing.check_for("0.0.0.0", starts_prefect=True, starts_mlflow=False)
    with pytest.raises(InputError, match="set RAMPLINE_MLFLOW_USERNAME and RAMPLINE_MLFLOW_PASSWORD first"):
        prefect.check_for("0.0.0.0", starts_prefect=True, starts_mlflow=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefect": "secret"}, "USER:PASSWORD"),
        ({"prefect": "me:"}, "USER:PASSWORD"),
        ({"mlflow_user": "me"}, "both"),
        ({"mlflow_user": "me", "mlflow_password": "short"}, "at least 12 characters"),
        ({"mlflow_user": "me", "mlflow_password": "password1234"}, "everybody knows"),
        ({"prefect": "me:password1234"}, "everybody knows"),
    ],
)
def test_passwords_that_cannot_be_used_are_refused_without_repeating_them(given, message):
    with pytest.raises(InputError, match=message) as refused:
        Access(**given)
    secret = given.get("mlflow_password", "") or given.get("prefect", "").partition(":")[2]
    assert not secret or secret not in str(refused.value)
    assert "secret" not in repr(Access(prefect="me:secret"))
