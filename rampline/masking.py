"""Texts without secrets: what a user sees, logs and tags may hold the address of a server, but not the way into it."""

from __future__ import annotations

import os
import re

MASK = "***"
SECRET_VARIABLES = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "DATABRICKS_TOKEN"),
    *("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"),
)
# A shorter value (`1`, `none`) is no secret, and replacing it would garble every text.
SHORTEST_SECRET = 6
# `//USER:PASSWORD@`; greedy, because a password that is not percent-encoded may hold an `@`.
_USER = re.compile(r"(?<=//)[^/\s'\"]*@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:password|passwd|pwd|token|secret|api_key|apikey))=)[^&\s'\"]+", re.IGNORECASE)


def without_user(uri: str) -> str:
    """A URI without its `USER:PASSWORD@`: still an address to open."""
    return _USER.sub("", uri)


def mask(text: str) -> str:
    """`text` with `***` for the user of every URI in it, for passwords in queries and for what secret variables hold.

    >>> mask("MLflow at https://me:pw@host/db?password=pw cannot be used")
    'MLflow at https://***@host/db?password=*** cannot be used'
    """
    text = _QUERY.sub(rf"\1{MASK}", _USER.sub(f"{MASK}@", text))
    for name in SECRET_VARIABLES:
        secret = os.environ.get(name, "")
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text
