"""Flow `study`: the whole chain, from data to comparison."""

from prefect import flow, get_run_logger

from flows.baseline import baseline
from flows.cluster import cluster
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.prepare import prepare
from rampline.errors import Preempted, RamplineError, RunFailed
from rampline.stages import FLOW_OF_STRATEGY, closing, study_of
from rampline.study import Study
from tasks.flow_run import flow_run_address
from tasks.start import start

STAGES = {flow.name: flow for flow in (baseline, finetune, cluster)}


@flow(name="study", flow_run_name="study {study}")
def study(
    study: str = "digits",
    only: list[str] = [],  # noqa: B006
    overrides: dict[str, str] = {},  # noqa: B006
    execution: str = "",
) -> str:
    """Run a study: prepare its data, train its runs one after the other, evaluate them and compare them.

    A run that fails does not stop the others, except those that start from its weights; the study then ends as failed,
    with a comparison of what there is. Returns the path of the report.

    Args:
        study: Name of a study that comes with Rampline, such as digits, or the path of a study file (.yaml).
        only: Names of the runs to train, in any order; none for all runs of the study.
        overrides: Settings laid over every run, by dotted key, such as {"epochs": "2", "data.limit": "50"}.
        execution: Folder of the execution: an unfinished one is continued. Empty for a new one.
    """
    checked = study_of(study, only, overrides, execution)
    prepare(study, only, overrides, execution)
    path = start(study, only, overrides, execution)
    with closing(path, flow_run_address()):
        failures = _train(checked, path)
        trained = [run.name for run in checked.runs if run.name not in failures]
        report = evaluate(study, path, trained) if trained else ""
        if failures:
            raise RunFailed("; ".join(f"run {name}: {why}" for name, why in failures.items()))
    return report


def _train(checked: Study, execution: str) -> dict[str, str]:
    """Train every run; returns why by the name of the runs that failed."""
    failures: dict[str, str] = {}
    for run in checked.runs:
        if run.starts_from in failures:
            failures[run.name] = f"not started, because it starts from {run.starts_from}"
            continue
        try:
            STAGES[FLOW_OF_STRATEGY[run.config.strategy]](study=checked.name, run=run.name, execution=execution)
        except Preempted:
            raise  # this machine is wanted back: no next run
        except RamplineError as error:
            failures[run.name] = str(error)
            get_run_logger().error(f"run {run.name} failed: {error}")
    return failures
