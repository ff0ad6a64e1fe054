"""Flow `study`: the whole chain, from data to comparison."""

from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from pydantic import Field

from rampline.config.run_config import Strategy
from rampline.errors import Preempted, RamplineError, RunFailed, TakenOver
from rampline.execution import command_of
from rampline.flows.baseline import baseline
from rampline.flows.cluster import cluster
from rampline.flows.evaluate import evaluate
from rampline.flows.finetune import finetune
from rampline.flows.prepare import prepare
from rampline.study.execution_file import Execution
from rampline.study.halving import turns
from rampline.tasks.approval import approve
from rampline.tasks.form import (
    AS_IN_STUDY,
    FLOW_OF_STRATEGY,
    Engine,
    Epochs,
    Launcher,
    Precision,
    find_execution,
    own_execution,
    with_values,
)
from rampline.tasks.steps import compare_with_history, models_checked, open_execution, show_comparison, turn_of
from rampline.tasks.turns import earlier_run_in_progress

STAGES = {flow.name: flow for flow in (baseline, finetune, cluster)}


@flow(name="study", flow_run_name="study {study}")
def study(
    study: str = "digits",
    only: list[str] = [],  # noqa: B006
    strategy: Literal["all", Strategy] = "all",
    engine: Engine = AS_IN_STUDY,
    epochs: Epochs = None,
    precision: Precision = AS_IN_STUDY,
    launcher: Launcher = AS_IN_STUDY,
    overrides: dict[str, str] = {},  # noqa: B006
    approve_cost_above: Annotated[float, Field(ge=0)] | None = None,
    execution: str = "",
) -> str | State[Any]:
    """Run a study: prepare its data, train its runs one after the other, evaluate them and compare them.

    A run that fails does not stop the others, except those that start from its weights; the study then ends as failed,
    with a comparison of what there is. While another study has this machine's devices it waits for its turn. Returns
    the path of the report.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        only: Names of the runs to train, in any order; none for all runs of the study.
        strategy: Train the runs with this strategy alone, and those whose weights they start from.
        overrides: Further settings for every run by dotted key, such as {"batch.size": "64", "data.limit": "50"}.
        approve_cost_above: Show the plan and wait for a person's go when it is expected to cost more than this, in USD,
            or when the cost is not known; none for never.
        execution: Folder of the execution: an unfinished one is continued. Empty for a new one.
    """
    own_execution(execution)
    if earlier := earlier_run_in_progress(study):
        return Cancelled(name="Skipped", message=f"{earlier} of this deployment trains {study} still: skipped")
    overrides = with_values(overrides, engine=engine, epochs=epochs, precision=precision, launcher=launcher)
    opened = find_execution(study, only, overrides, execution, strategy)
    if strategy != "all":
        only = [run.name for run in opened.study.runs]
    if not approve(opened, approve_cost_above):
        return Cancelled(message="its cost was not approved")
    with turn_of(opened):
        with models_checked(opened):
            prepare(study, only, overrides)
        with open_execution(opened, command_of(study, only, overrides)):
            return _train_and_compare(study, opened)


def _train_and_compare(study: str, execution: Execution) -> str:
    failures = _train(execution)
    trained = [run.name for run in execution.study.runs if run.name not in failures]
    report = ""
    if trained:
        report = evaluate(study, runs=trained)
        show_comparison(execution, report)  # on the page that people open, too
        compare_with_history(execution)
    if failures:
        raise RunFailed("; ".join(f"run {name}: {why}" for name, why in failures.items()))
    return report


def _train(execution: Execution) -> dict[str, str]:
    """Train every run; returns why by the name of the runs that failed."""
    failures: dict[str, str] = {}
    runs = execution.study.runs
    for run, goal in turns(execution):
        rung = f", to epoch {goal.epoch} of {run.config.epochs}" if goal and not goal.stopped else ""
        get_run_logger().info(f"run {runs.index(run) + 1} of {len(runs)}: {run.name}{rung}")
        if run.starts_from in failures:
            failures[run.name] = f"not started, because it starts from {run.starts_from}"
            continue
        try:
            STAGES[FLOW_OF_STRATEGY[run.config.strategy]](study=execution.study.name, run=run.name)
        except (Preempted, TakenOver):
            raise  # this machine is wanted back, or another one goes on: no next run
        except RamplineError as error:
            failures[run.name] = str(error)
            get_run_logger().error(f"run {run.name} failed: {error}")
    return failures
