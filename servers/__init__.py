"""The servers of `rampline up`: Prefect, MLflow and a worker, for the two UIs and for schedules.

And what else knows a Prefect server: the one that a command starts for itself, and the watchdog of an execution.
"""
