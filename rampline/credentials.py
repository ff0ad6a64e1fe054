"""Passwords and tokens inside addresses, such as `https://user:secret@host/`: refused in settings, hidden in messages.

Settings end up in `config.json`, in MLflow's params and in reports. Those who need a login keep it where the tool that
uses it looks for it: `~/.netrc`, a cloud's own credentials file, an environment variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from rampline.errors import ConfigError

# A user name alone may be a token; `@` in a path or a query is none.
# The look-behind keeps it linear in a text of letters.
# Greedy, because a password that is not percent-encoded may hold an `@`.
_USER = re.compile(r"(?P<scheme>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)[^/\s?#'\"]+@", re.IGNORECASE)
# With words before them, such as `private_token` and `X-Goog-Signature`.
_SECRET_NAMES = "token|secret|signature|password|passwd|credential|api_?key|sig|key"
_QUERY = re.compile(rf"(?P<name>[?&;](?:[\w.-]{{0,40}}[-_])?(?:{_SECRET_NAMES})=)[^&;#\s'\"]+", re.IGNORECASE)

# What the programs that Rampline talks to take their secrets from.
SECRET_VARIABLES = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "DATABRICKS_TOKEN"),
    *("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "RAMPLINE_MLFLOW_PASSWORD"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "RAMPLINE_NOTIFY_URL"),
    *("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
)
# A shorter value (`1`, `none`) is no secret, and replacing it would garble every text.
SHORTEST_SECRET = 6


def mask(text: str) -> str:
    """`hide_credentials`, and `***` for what secret variables hold: for whatever is shown, logged or tagged.

    >>> mask("MLflow at https://me:pw@host/db?password=pw cannot be used")
    'MLflow at https://***@host/db?password=*** cannot be used'
    """
    text = hide_credentials(text)
    for name in SECRET_VARIABLES:
        secret = os.environ.get(name, "")
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def first_line(error: Exception) -> str:
    """The first line of an error's text, without secrets, for a message of one line."""
    return mask((str(error).strip().splitlines() or [type(error).__name__])[0])


def without_user(uri: str) -> str:
    """A URI without its `USER:PASSWORD@`: still an address to open."""
    return _USER.sub(r"\g<scheme>", uri)


def user_of(uri: str) -> str:
    """The `USER:PASSWORD` of a URI, decoded; empty where it has none."""
    found = _USER.match(uri)
    return unquote(found[0].removeprefix(found["scheme"]).removesuffix("@")) if found else ""


def hide_credentials(text: str) -> str:
    """`text` with `***` for what is, or may be, a user name, password or token in an address."""
    return _QUERY.sub(r"\g<name>***", _USER.sub(r"\g<scheme>***@", text))


def check_no_credentials(where: str, value: Any) -> None:
    """Refuse credentials in a text, or anywhere in nested mappings and lists.

    Args:
        where: dotted key of `value`, for the message; empty at the top.
        value: what was read from YAML or a command line.

    Raises:
        ConfigError: naming the key, without repeating the secret.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_no_credentials(where, key)
            check_no_credentials(f"{where}.{key}" if where else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_no_credentials(where, inner)
    elif isinstance(value, str) and hide_credentials(value) != value:
        raise ConfigError(
            f"{where or 'the study'} holds a user name, password or token in an address: it would be written to "
            "config files and MLflow, so leave it out and give it by the environment or a credentials file"
        )
