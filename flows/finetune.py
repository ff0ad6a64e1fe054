"""Flow `finetune`: a run on several devices of one machine, mirrored."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from rampline.flows.baseline import run_stage
from rampline.tasks.form import AS_IN_STUDY, Engine, Precision, with_values


@flow(name="finetune", flow_run_name="{run}")
def finetune(
    study: str = "digits",
    run: str = "mirrored-ramp",
    engine: Engine = AS_IN_STUDY,
    replicas: Annotated[int, Field(ge=1)] | None = None,
    epochs: Annotated[int, Field(ge=1)] | None = None,
    precision: Precision = AS_IN_STUDY,
    overrides: dict[str, str] = {},  # noqa: B006
    execution: str = "",
) -> None:
    """Train a run of a study on mirrored replicas: several devices of one machine, one model.

    Started by itself it makes an execution of its own: it prepares the data, trains the run (and those whose weights it
    starts from), evaluates and compares.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        run: Name of a run of the study with strategy mirrored.
        engine: loop (Rampline's training loop), fit (Model.fit), or as in the study.
        replicas: Devices, each with a replica of the model, at least 1; none for what the study says. A machine without
            that many GPUs refuses, unless cluster.virtual_devices is set.
        epochs: Passes over the training images, at least 1; none for what the study says.
        precision: Number format of the computation.
        overrides: Further settings by dotted key, such as {"batch.size": "128"}.
        execution: Folder of the execution that this is a stage of. The study flow sets it: leave it empty.
    """
    size = {f"{run}:cluster.replicas": replicas}  # not of the runs whose weights it starts from
    given = with_values(overrides, **size, engine=engine, epochs=epochs, precision=precision)
    run_stage("finetune", study, run, given, execution)
