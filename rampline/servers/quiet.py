"""What the command line sets in the environment before Prefect, TensorFlow or MLflow are imported.

All three read their settings from environment variables. Each is set only where the user has not set it.
"""

from __future__ import annotations

import os

# Flow and task logs stay in Prefect's database; in the terminal they would repeat the progress display.
QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # After 2, 4 and 8 s: a server that is restarted is waited for, and one that is gone costs no minute per request.
    "PREFECT_CLIENT_MAX_RETRIES": "3",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def make_quiet() -> None:
    """Keep the noise of the libraries, and their usage reports, away from the user."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
