"""Automations of the Prefect server: made where missing, repaired where they point to nothing, else left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rampline.servers.prefect_api import PrefectApi

PREFIX = "rampline: "
TAG = "rampline"
# What of an automation can be written; the rest (id, created, updated) is the server's.
FIELDS = (
    *("name", "description", "enabled", "tags"),
    *("trigger", "actions", "actions_on_trigger", "actions_on_resolve"),
)
# Keys of actions that name another object, and the route that lists those objects by their ids.
REFERENCES = {
    "deployment_id": ("/deployments/filter", "deployments"),
    "block_document_id": ("/block_documents/filter", "block_documents"),
}


@dataclass(frozen=True, kw_only=True)
class Automation:
    """An automation as Rampline makes it.

    Attributes:
        name: begins with `rampline: `; it is found again by its name.
        description: what it does, for the UI.
        trigger: as in Prefect's REST API.
        actions: as in Prefect's REST API; at least one.
        enabled: whether it begins switched on.
        keeps_to_within: its `trigger.within` was asked for, and is set again where the UI says otherwise.
    """

    name: str
    description: str
    trigger: Mapping[str, Any]
    actions: Sequence[Mapping[str, Any]]
    enabled: bool = True
    keeps_to_within: bool = False


def of_our_deployments() -> list[dict[str, str]]:
    """What an event of a flow run of our deployments is related to; the stages inside it have no tags."""
    return [
        {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"},
        {"prefect.resource.role": "deployment", "prefect.resource.id": "prefect.deployment.*"},
    ]


def apply_automations(api: PrefectApi, wanted: Sequence[Automation]) -> list[str]:
    """Make those that are missing; of those that are there, change only what is broken or was asked for.

    Whether one is switched on is the user's: it is never changed.

    Returns:
        what was made or changed, a line each.
    """
    names = [automation.name for automation in wanted]
    found = {each["name"]: each for each in api.post("/automations/filter", {"automations": {"name": {"any_": names}}})}
    lines = []
    for automation in wanted:
        line = _repair(api, found[automation.name], automation) if automation.name in found else _make(api, automation)
        lines += [line] if line else []
    return lines


def _make(api: PrefectApi, automation: Automation) -> str:
    body = {"description": automation.description, "enabled": automation.enabled, "tags": [TAG]}
    body |= {"name": automation.name, "trigger": automation.trigger, "actions": automation.actions}
    api.post("/automations/", body)
    return f"made the automation '{automation.name}'" + ("" if automation.enabled else ", switched off")


def _repair(api: PrefectApi, found: Mapping[str, Any], automation: Automation) -> str:
    body = {field: found[field] for field in FIELDS}
    changes = []
    if _point_to_nothing(api, found["actions"]):
        body["actions"] = automation.actions
        changes.append("it pointed to what is gone")
    within = automation.trigger["within"]
    if automation.keeps_to_within and found["trigger"].get("within") != within:
        body["trigger"] = {**found["trigger"], "within": within}
        changes.append(f"after {within:g} s")
    if not changes:
        return ""
    api.request("PUT", f"/automations/{found['id']}", body)
    return f"changed the automation '{automation.name}': {', '.join(changes)}"


def _point_to_nothing(api: PrefectApi, actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any action names an object that is not on the server any more."""
    for key, (route, kind) in REFERENCES.items():
        ids = {action[key] for action in actions if action.get(key)}
        if ids and len(api.post(route, {kind: {"id": {"any_": sorted(ids)}}})) < len(ids):
            return True
    return False
