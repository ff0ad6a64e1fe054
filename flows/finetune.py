"""Flow `finetune`: a run on several devices of one machine, mirrored."""

from prefect import flow

from rampline.flows.baseline import run_stage
from rampline.tasks.form import AS_IN_STUDY, Engine, Epochs, Launcher, Precision, Replicas, with_values


@flow(name="finetune", flow_run_name="{run}")
def finetune(
    study: str = "digits",
    run: str = "mirrored-ramp",
    engine: Engine = AS_IN_STUDY,
    replicas: Replicas = None,
    epochs: Epochs = None,
    precision: Precision = AS_IN_STUDY,
    launcher: Launcher = AS_IN_STUDY,
    overrides: dict[str, str] = {},  # noqa: B006
) -> None:
    """Train a run of a study on mirrored replicas: several devices of one machine, one model.

    Started by itself it makes an execution of its own: it prepares the data, trains the run (and those whose weights it
    starts from), evaluates and compares.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        run: Name of a run of the study with strategy mirrored.
        overrides: Further settings by dotted key, such as {"batch.size": "128"}.
    """
    size = {f"{run}:cluster.replicas": replicas}  # not of the runs whose weights it starts from
    given = with_values(overrides, **size, engine=engine, epochs=epochs, precision=precision, launcher=launcher)
    run_stage("finetune", study, run, given)
