"""The comparison of a study's runs, read from MLflow: as a table, in a terminal, as a report and as MLflow figures."""

import rampline.tracking  # noqa: F401 - its settings must be there before mlflow is imported
