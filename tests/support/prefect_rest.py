"""Prefect's REST API as a person's script uses it: what Rampline has set on a server is looked at from outside."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

# With 503 Prefect says that nothing was done and that it can be tried again: its database was locked, mostly.
BUSY = 503
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, None)


class PrefectError(Exception):
    """Prefect refuses a request, and says why."""


@dataclass(frozen=True, kw_only=True)
class PrefectApi:
    """Where the API is, and `user:password` of a server that asks for it."""

    url: str
    auth: str = ""

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; `None` where it is empty."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.auth:
            headers["Authorization"] = f"Basic {base64.b64encode(self.auth.encode()).decode()}"
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        for pause in RETRY_SECONDS:
            try:
                with urllib.request.urlopen(request, timeout=15) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code != BUSY or pause is None:
                    reason = " ".join(error.read().decode(errors="replace").split())
                    raise PrefectError(f"Prefect refused {method} {path}: {error.code} {reason[:500]}") from error
                time.sleep(pause)
        return None

    def post(self, path: str, body: Any = None) -> Any:
        """`request` with the method POST."""
        return self.request("POST", path, body or {})
