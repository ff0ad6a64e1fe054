"""Where servers listen, how they are reached, and who has a port already."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress

from rampline.errors import InputError

PROBE_SECONDS = 3.0
LOCALHOST = ("localhost", "127.0.0.1", "[::1]")
PROXIES = {"http_proxy", "https_proxy", "all_proxy"}
# Further names by which both servers may be called, such as that of a proxy.
ALLOWED_HOSTS = "RAMPLINE_ALLOWED_HOSTS"
# Those of this machine, where they listen beyond loopback: set by `rampline up`.
OWN_HOSTS = "RAMPLINE_OWN_HOSTS"
# The number of the open socket that a server of `rampline up` is to listen on.
LISTENER = "RAMPLINE_LISTENER"


def resolve(host: str) -> str:
    """The address to listen on for `--host`.

    Raises:
        InputError: when it is none of this machine.
    """
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        raise InputError(f"--host {host} is no address: give one of this machine, such as 127.0.0.1") from None
    # Some machines call themselves `localhost` by IPv6, which half of the clients do not try.
    address = "127.0.0.1" if host == "localhost" else address
    try:
        socket.create_server((address, 0), family=_family(address)).close()
    except OSError:
        raise InputError(f"--host {host} is no address of this machine: it has {', '.join(own_addresses())}") from None
    return address


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine can connect."""
    return ipaddress.ip_address(address).is_loopback


def url(address: str, port: int) -> str:
    """How this machine reaches a server that listens on `address`."""
    host = ipaddress.ip_address(address)
    if host.is_unspecified:
        host = ipaddress.ip_address("127.0.0.1" if host.version == 4 else "::1")
    return f"http://{_in_url(host)}:{port}"


def host_elsewhere(address: str) -> str:
    """What other machines call this one, on which a server listens on `address`."""
    host = ipaddress.ip_address(address)
    return socket.gethostname() if host.is_unspecified else _in_url(host)


def _in_url(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return f"[{host}]" if host.version == 6 else str(host)


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which clients leave out a proxy on the way to this machine.

    It would look for the servers on its own, and be told their secrets.
    """
    given = environment.get("no_proxy") or environment.get("NO_PROXY", "")
    # psutil, which knows the addresses, takes its time; so do not ask it for nothing.
    others = own_addresses() if PROXIES & {name.lower() for name in environment} else []
    hosts = dict.fromkeys([*given_hosts(given), *(host.strip("[]") for host in (*LOCALHOST, *others))])
    # Some clients take the star for all hosts only where it stands alone.
    return dict.fromkeys(("no_proxy", "NO_PROXY"), "*" if "*" in hosts else ",".join(hosts))


def given_hosts(text: str) -> list[str]:
    """The names in a value such as that of `RAMPLINE_ALLOWED_HOSTS`."""
    return [host.strip() for host in text.split(",") if host.strip()]


def own_names(address: str) -> list[str]:
    """The names and addresses by which other machines may know this one; none where `address` is for it alone."""
    return [] if is_loopback(address) else [socket.gethostname(), socket.getfqdn(), *own_addresses()]


def own_addresses() -> list[str]:
    """The addresses of this machine, those by IPv6 in brackets."""
    import psutil

    found = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    by_6 = [f"[{entry.address}]" for entry in found if entry.family == socket.AF_INET6 and "%" not in entry.address]
    return [entry.address for entry in found if entry.family == socket.AF_INET] + by_6


def listen(address: str, port: int) -> socket.socket:
    """A socket for a server that is started again and again: nobody else can have its port meanwhile.

    Another user who answered there would be told the secret by all clients.
    """
    listener = socket.create_server((address, port), family=_family(address))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvicorn does not, with a socket of its caller's
    return listener


def check_free(address: str, port: int, *, flag: str) -> None:
    """Refuse a port that somebody else listens on.

    Raises:
        InputError: saying who has the port, as far as that can be found out, and what to do.
    """
    try:
        socket.create_server((address, port), family=_family(address)).close()
    except PermissionError:
        raise InputError(f"port {port} may not be used without root: choose one above 1023 with {flag}") from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise InputError(f"port {port} of {address} cannot be used: {error.strerror}") from error
        raise InputError(f"port {port} of {address} is taken {_by_whom(address, port, flag)}") from None


def _by_whom(address: str, port: int, flag: str) -> str:
    """Who has it, and what to do: to use a server that wants no login, and is of a process that one may see."""
    at, holder, other = url(address, port), _holder(port), f"choose another port with {flag}"
    if _get(f"{at}/api/health") == "true":
        kind, variable, asked = "a Prefect", f"PREFECT_API_URL={at}/api", f"{at}/api/admin/version"
    elif _get(f"{at}/health") == "OK":
        kind, variable = "an MLflow", f"MLFLOW_TRACKING_URI={at}"
        asked = f"{at}/api/2.0/mlflow/experiments/get?experiment_id=0"
    else:
        return f"by another program{holder}: {other}"
    use = f"set {variable} to use that one, or " if holder and _get(asked) else ""
    return f"by {kind} server{holder}: {use}{other}"


def _holder(port: int) -> str:
    import psutil

    with suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr[1] == port and found.pid:
                return f" (process {found.pid}, {psutil.Process(found.pid).name()})"
    return ""


def _get(address: str) -> str:
    import urllib.request

    with suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=PROBE_SECONDS) as answer:
        return answer.read(100).decode(errors="replace").strip()
    return ""


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
