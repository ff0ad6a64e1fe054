"""The automation that finds flow runs whose process is gone without a word."""

from __future__ import annotations

from rampline.servers.prefect_objects.automations import PREFIX, Automation

# Flow runs of our deployments give a sign of life every 30 s, and two of them may be lost, with a connection or on a
# server that is not ours. Just 90 s would be too few for the third to be in time.
SILENCE_SECONDS = 100
FLOWS = ("prepare", "baseline", "finetune", "cluster", "evaluate", "study", "predict")


def crash_zombies(*, silence_seconds: float = SILENCE_SECONDS) -> Automation:
    """Set a flow run Crashed that gave signs of life and then nothing for `silence_seconds` (10 at least).

    Any event of the flow run counts, such as the change of its state when it is suspended or cancelled: then nothing is
    expected until its next sign of life. A flow run that pauses in its process goes on giving them, and so does one
    that waits for devices. One that has ended is never set Crashed: Prefect refuses that.
    """
    return Automation(
        name=f"{PREFIX}zombie flow runs",
        description=(
            f"A flow run that gives no sign of life for {silence_seconds:g} s is set Crashed: its process, its worker "
            "or its machine is gone."
        ),
        trigger={
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            # Stages inside a flow run have neither its tags nor its deployment.
            "match_related": [{"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)}],
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.*"],
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": silence_seconds,
        },
        actions=[
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "name": "Crashed",
                "message": (
                    f"No sign of life for {silence_seconds:g} s: its process, its worker or its machine is gone. "
                    "Retry it to go on from the last checkpoint."
                ),
            }
        ],
    )
