"""The servers of `rampline up`: Prefect, MLflow and a worker, for the two UIs and for schedules."""
