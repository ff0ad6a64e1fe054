"""Where the MLflow store is: the user's `MLFLOW_TRACKING_URI`, else a database in `RAMPLINE_HOME`. No MLflow."""

from __future__ import annotations

import os

from rampline.home import Home


def tracking_uri(home: Home) -> str:
    """`$MLFLOW_TRACKING_URI`, else the sqlite database of `home`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or default_uri(home)


def default_uri(home: Home) -> str:
    """The sqlite database of `home`."""
    return f"sqlite:///{home.tracking_database}"
