"""Flow `baseline`: a run on one device, which the others are compared with."""

from prefect import flow

from rampline.execution import command_of
from rampline.flows.evaluate import evaluate
from rampline.flows.prepare import prepare
from rampline.study.execution_file import current_execution
from rampline.tasks.form import AS_IN_STUDY, Engine, Epochs, Launcher, Precision, find_stage, with_values
from rampline.tasks.steps import models_checked, open_execution, train, turn_of


@flow(name="baseline", flow_run_name="{run}")
def baseline(
    study: str = "digits",
    run: str = "baseline",
    engine: Engine = AS_IN_STUDY,
    epochs: Epochs = None,
    precision: Precision = AS_IN_STUDY,
    launcher: Launcher = AS_IN_STUDY,
    overrides: dict[str, str] = {},  # noqa: B006
) -> None:
    """Train a run of a study on one device.

    Started by itself it makes an execution of its own: it prepares the data, trains the run (and those whose weights it
    starts from), evaluates and compares.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        run: Name of a run of the study with strategy single.
        overrides: Further settings by dotted key, such as {"batch.size": "128"}.
    """
    given = with_values(overrides, engine=engine, epochs=epochs, precision=precision, launcher=launcher)
    run_stage("baseline", study, run, given)


def run_stage(flow_name: str, study: str, run: str, overrides: dict[str, str]) -> None:
    """What the flows that train one run do: train it in the execution that is open; without one, see `baseline`."""
    if opened := current_execution():
        train(opened, run)
        return
    own = find_stage(flow_name, study, run, overrides)
    runs = [run.name for run in own.study.runs]
    with turn_of(own):
        with models_checked(own):
            prepare(study, runs, overrides)
        with open_execution(own, command_of(study, runs, overrides)):
            for name in runs:
                train(own, name)
            evaluate(study, runs=runs)
