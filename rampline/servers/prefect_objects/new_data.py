"""The automation that trains a study after its data changed; it begins switched off."""

from __future__ import annotations

from rampline.servers.prefect_api import PrefectApi
from rampline.servers.prefect_objects.automations import PREFIX, Automation

PREPARED = "rampline.data.prepared"
STUDY_LABEL = "rampline.study"


def train_after_new_data(api: PrefectApi) -> list[Automation]:
    """Run the deployment `study/study` when deployment `prepare` has made a new dataset; nothing without the former.

    Only `prepare` by itself counts: the stage of that name inside a study is trained on by that study anyway.
    """
    found = api.post(
        "/deployments/filter", {"deployments": {"name": {"any_": ["study"]}}, "flows": {"name": {"any_": ["study"]}}}
    )
    return [_automation(deployment["id"]) for deployment in found]


def _automation(deployment_id: str) -> Automation:
    study = {"__prefect_kind": "jinja", "template": f"{{{{ event.resource['{STUDY_LABEL}'] }}}}"}
    return Automation(
        name=f"{PREFIX}train after new data",
        description="When the deployment prepare has made a dataset that was not there before, its study is trained.",
        trigger={
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "rampline.dataset.*"},
            "match_related": [{"prefect.resource.role": "deployment", "prefect.resource.name": "prepare"}],
            "expect": [PREPARED],
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": 0,
        },
        actions=[
            {
                "type": "run-deployment",
                "source": "selected",
                "deployment_id": deployment_id,
                "parameters": {"study": study},
            }
        ],
        enabled=False,
    )
