"""Messages to a person when a flow run fails, crashes or takes too long, where `RAMPLINE_NOTIFY_URL` says where to.

They go through a block of Prefect's, `custom-webhook/rampline-notify`, as `{"text": ...}` by POST: what Slack,
Mattermost, Google Chat and Teams take. The address is a secret (who knows it can write there), and is kept as one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rampline.credentials import mask
from rampline.errors import ConfigError
from rampline.servers.prefect_api import PrefectApi, PrefectError
from rampline.servers.prefect_objects.automations import PREFIX, Automation, of_our_deployments

URL_VARIABLE = "RAMPLINE_NOTIFY_URL"
OVERRUN_VARIABLE = "RAMPLINE_OVERRUN_HOURS"
OVERRUN_HOURS = 24.0
BLOCK_TYPE = "custom-webhook"
BLOCK = "rampline-notify"
SECRET = "address"


@dataclass(frozen=True, kw_only=True)
class Messages:
    """How messages are sent.

    Attributes:
        block: id of the notification block.
        ui: address of Prefect's UI, for a server that does not know its own.
    """

    block: str
    ui: str

    def send(self, subject: str) -> dict[str, Any]:
        """The action that sends `subject` (a Jinja template), the message of the flow run's state and a link to it."""
        link = f"{{{{ flow_run|ui_url or '{self.ui}/runs/flow-run/' ~ flow_run.id }}}}"
        body = f"{{{{ flow_run.state.message or '' }}}}\n{link}"
        return {"type": "send-notification", "block_document_id": self.block, "subject": subject, "body": body}


def notifying(api: PrefectApi) -> tuple[list[Automation], list[str]]:
    """The automations that notify, and what was done to their block, a line each; nothing without a URL.

    Raises:
        ConfigError: when that variable holds no http(s) address, or `RAMPLINE_OVERRUN_HOURS` no number of hours.
    """
    url = os.environ.get(URL_VARIABLE, "").strip()
    if not url:
        return [], []
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{URL_VARIABLE} must be an address that begins with http:// or https://")
    hours = _overrun_hours()
    block, lines = _ensure_block(api, url)
    asked = OVERRUN_VARIABLE in os.environ
    send = Messages(block=block, ui=api.url.removesuffix("/api"))
    return [notify_of_failures(send), notify_of_overruns(send, seconds=hours * 3600, asked=asked)], lines


def notify_of_failures(messages: Messages) -> Automation:
    """Notify of flow runs of deployments that end as failed or crashed, whatever the name of that state."""
    return Automation(
        name=f"{PREFIX}notify of failed and crashed flow runs",
        description="A flow run of a deployment failed or crashed, and is not tried again: a message is sent.",
        trigger={
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*", "prefect.state-type": ["FAILED", "CRASHED"]},
            "match_related": of_our_deployments(),
            "expect": ["prefect.flow-run.*"],
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": 0,
        },
        actions=[messages.send("Rampline: {{ flow_run.name }} is {{ flow_run.state.name }}")],
    )


def notify_of_overruns(messages: Messages, *, seconds: float, asked: bool = False) -> Automation:
    """Notify of flow runs of deployments that have not ended `seconds` (10 at least) after they began to run.

    Args:
        messages: how they are sent.
        seconds: how long a flow run may take, with pauses and waiting for devices.
        asked: whether the user asked for just that many; then it is set again where the UI says otherwise.
    """
    ends = ("Completed", "Failed", "TimedOut", "Crashed", "Cancelled", "Skipped", "Cached", "RolledBack", "Suspended")
    hours = f"{seconds / 3600:g}"
    # On sqlite, Prefect loses the event of an end now and then; the flow run itself knows better.
    subject = (
        f"{{{{ 'ended, which Prefect noticed late' if flow_run.end_time else 'has not ended after {hours} hours' }}}}"
    )
    return Automation(
        name=f"{PREFIX}notify of overrunning flow runs",
        description=f"A flow run of a deployment has not ended {hours} hours after it began: a message is sent.",
        trigger={
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": of_our_deployments(),
            "after": ["prefect.flow-run.Running"],
            "expect": [f"prefect.flow-run.{state}" for state in ends],
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": seconds,
        },
        actions=[messages.send(f"Rampline: {{{{ flow_run.name }}}} {subject}")],
        keeps_to_within=asked,
    )


def _overrun_hours() -> float:
    text = os.environ.get(OVERRUN_VARIABLE, f"{OVERRUN_HOURS:g}")
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    # Prefect's shortest is 10 s; NaN compares as false.
    if not 10 / 3600 <= hours < float("inf"):
        raise ConfigError(f"{OVERRUN_VARIABLE}={text} must be a number of hours, such as 24")
    return hours


def _ensure_block(api: PrefectApi, url: str) -> tuple[str, list[str]]:
    """The block's id; made if missing, and with a new address where the variable says another."""
    try:
        return _put_block(api, url)
    except PrefectError as error:
        # The server's reason repeats what it was sent.
        raise PrefectError(mask(str(error)).replace(url, "***")) from None


def _put_block(api: PrefectApi, url: str) -> tuple[str, list[str]]:
    of_type = {"block_types": {"slug": {"any_": [BLOCK_TYPE]}}, "block_documents": {"name": {"any_": [BLOCK]}}}
    found = api.post("/block_documents/filter", {**of_type, "include_secrets": True})
    if not found:
        kind = api.request("GET", f"/block_types/slug/{BLOCK_TYPE}")["id"]
        newest = api.post("/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind]}}, "limit": 1})
        body = {"name": BLOCK, "block_type_id": kind, "block_schema_id": newest[0]["id"], "data": _data(url)}
        made = api.post("/block_documents/", body)
        return made["id"], [f"made the notification block {BLOCK_TYPE}/{BLOCK}, with the address in {URL_VARIABLE}"]
    block = found[0]
    if block["data"].get("secrets", {}).get(SECRET) == url:
        return block["id"], []
    api.request("PATCH", f"/block_documents/{block['id']}", {"data": {"secrets": {SECRET: url}}})
    return block["id"], [f"gave the notification block {BLOCK_TYPE}/{BLOCK} the new address in {URL_VARIABLE}"]


def _data(url: str) -> dict[str, Any]:
    return {
        "name": BLOCK,
        "url": f"{{{{{SECRET}}}}}",
        "json_data": {"text": "{{subject}}\n{{body}}"},
        "secrets": {SECRET: url},
    }
