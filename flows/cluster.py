"""Flow `cluster`: a run on several processes that find each other by TF_CONFIG."""

from prefect import flow

from rampline.flows.baseline import run_stage
from rampline.tasks.form import AS_IN_STUDY, Epochs, Launcher, ParameterServers, Precision, Workers, with_values


@flow(name="cluster", flow_run_name="{run}")
def cluster(
    study: str = "digits",
    run: str = "multi-worker",
    workers: Workers = None,
    parameter_servers: ParameterServers = None,
    epochs: Epochs = None,
    precision: Precision = AS_IN_STUDY,
    launcher: Launcher = AS_IN_STUDY,
    overrides: dict[str, str] = {},  # noqa: B006
) -> None:
    """Train a run of a study on several processes: workers that all-reduce, or workers and parameter servers.

    Started by itself it makes an execution of its own: it prepares the data, trains the run (and those whose weights it
    starts from), evaluates and compares.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        run: Name of a run of the study with strategy multi_worker or parameter_server.
        overrides: Further settings by dotted key, such as {"batch.size": "128"}.
    """
    size = {f"{run}:cluster.workers": workers, f"{run}:cluster.parameter_servers": parameter_servers}
    given = with_values(overrides, **size, epochs=epochs, precision=precision, launcher=launcher)
    run_stage("cluster", study, run, given)
