"""Prefect's REST API with nothing but Python: for processes that must stay small, or may not import Prefect."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rampline.errors import RamplineError

# With 503 Prefect says that nothing was done and that it can be tried again: its database was locked, mostly.
BUSY = 503
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)


class PrefectError(RamplineError):
    """Prefect refuses a request, and says why."""


class _Busy(PrefectError):
    pass


@dataclass(frozen=True, kw_only=True)
class PrefectApi:
    """Where the API is, and the way in.

    Attributes:
        url: such as `http://127.0.0.1:4200/api`.
        auth: `user:password` of a server with `PREFECT_SERVER_API_AUTH_STRING`; empty without.
        key: of Prefect Cloud; empty without.
        timeout_seconds: of each request.
    """

    url: str
    auth: str = ""
    key: str = ""
    timeout_seconds: float = 15.0

    @classmethod
    def from_environment(cls, *, timeout_seconds: float = 15.0) -> PrefectApi:
        """What `PREFECT_API_URL`, `PREFECT_API_AUTH_STRING` and `PREFECT_API_KEY` say; the first must be set."""
        return cls(
            url=os.environ["PREFECT_API_URL"].rstrip("/"),
            auth=os.environ.get("PREFECT_API_AUTH_STRING", ""),
            key=os.environ.get("PREFECT_API_KEY", ""),
            timeout_seconds=timeout_seconds,
        )

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; `None` where it is empty.

        Raises:
            PrefectError: when it refuses: with its status, and its reason.
            OSError: when it cannot be reached.
        """
        for pause in RETRY_SECONDS:
            with suppress(_Busy):
                return self._request(method, path, body)
            time.sleep(pause)
        return self._request(method, path, body)

    def post(self, path: str, body: Any = None) -> Any:
        """`request` with the method POST."""
        return self.request("POST", path, body or {})

    def answers(self) -> bool:
        """Whether the server is there and healthy."""
        try:
            self.request("GET", "/health")
        except (OSError, PrefectError):
            return False
        return True

    def _request(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers(), method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_seconds) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            reason = " ".join(error.read().decode(errors="replace").split())
            kind = _Busy if error.code == BUSY else PrefectError
            raise kind(f"Prefect refused {method} {path}: {error.code} {reason[:500]}") from error
        return json.loads(text) if text else None

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.auth:
            headers["Authorization"] = f"Basic {base64.b64encode(self.auth.encode()).decode()}"
        elif self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return headers
