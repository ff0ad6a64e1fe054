"""Where a registered model shows in MLflow."""

from __future__ import annotations

from urllib.parse import urlencode

from rampline.credentials import without_user
from rampline.home import Home
from rampline.links import LOCAL_SERVER
from rampline.tracking.pages import TRAINING
from rampline.tracking.store import tracking_uri


def model_version_link(model: str, version: int, home: Home) -> str:
    """The page of a version, on the tracking server or on the one that `rampline up` starts."""
    uri = tracking_uri(home)
    server = without_user(uri).rstrip("/") if uri.startswith("http") else LOCAL_SERVER
    return f"{server}/#/models/{model}/versions/{version}?{urlencode(TRAINING)}"
