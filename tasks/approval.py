"""Asking a person, on the flow run's page, before a study that costs much is started."""

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from pydantic import Field

from rampline.forecast.plan import expected_cost_usd, plan_study
from rampline.record.units import write_dollars
from rampline.study.execution_file import Execution
from rampline.tasks.flow_run import current_flow_run
from rampline.tasks.page import artifact_key, plan_markdown

DAYS_TO_ANSWER = 7


class Approval(RunInput):
    """What the person answers."""

    # Where somebody resumes the flow run without an answer, that of the defaults is taken.
    approved: bool = Field(default=False, description="On to start the study; off to cancel it.")
    remark: str = Field(default="", description="Why, for the log.")


def approve(execution: Execution, above_usd: float | None) -> bool:
    """Whether the study may start: it is expected to cost at most `above_usd`, or a person has said so.

    The page shows the plan, and the flow run is Paused until somebody answers with Resume, at most `DAYS_TO_ANSWER`
    days; Resume without an answer is a no. A cost that nothing is known of is asked about too. `None` asks nobody, and
    so does an execution that is continued.
    """
    if above_usd is None or execution.is_begun:
        return True
    study, logger = execution.study, get_run_logger()
    planned = plan_study(study, execution.home)
    cost = expected_cost_usd(planned)
    known = "cannot be known yet" if cost is None else f"is expected to be {write_dollars(cost)}"
    if cost is not None and cost <= above_usd:
        logger.info(f"the cost {known}: no approval needed up to ${above_usd:.2f}")
        return True
    plan = plan_markdown(study, planned)
    create_markdown_artifact(plan, key=artifact_key("plan", study.name), description=f"Plan of {study.name}")
    logger.info(f"waiting for an approval: the cost {known}, and above ${above_usd:.2f} somebody has to agree")
    question = f"The cost of `{study.name}` {known}; approval is asked above ${above_usd:.2f}.\n\n{plan}"
    form = Approval.with_initial_data(description=question)
    # Prefect keeps the form of an earlier attempt, and takes no second one of its key.
    key = f"approval-{current_flow_run().run_count}"
    answer = pause_flow_run(wait_for_input=form, timeout=DAYS_TO_ANSWER * 24 * 3600, key=key)
    logger.info(f"{'approved' if answer.approved else 'not approved'}{f': {answer.remark}' if answer.remark else ''}")
    return answer.approved
