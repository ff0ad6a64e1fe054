"""MLflow: what a study and its runs leave there, through an explicit `MlflowClient` and one writing process."""

import os

# Read when mlflow is imported or used; what the user has set stays. Telemetry would open connections on machines that
# may have no network; the URL lines and the upload bar belong to a notebook; seven retries would stop the reader of a
# run's events for minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
