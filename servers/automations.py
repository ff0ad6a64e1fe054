"""Automations of the Prefect server: made where missing, repaired where they point to nothing, else left alone.

`automations.yaml` says what they are. Messages to a person go through a block of Prefect's,
`custom-webhook/rampline-notify`, as `{"text": ...}` by POST: what incoming webhooks of Slack, Mattermost, Rocket.Chat
and Google Chat take. Its address is `RAMPLINE_NOTIFY_URL`, a secret (who knows it can write there), and is kept as one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import BlockDocumentCreate, BlockDocumentUpdate
from prefect.events.filters import AutomationFilter, AutomationFilterName
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from rampline.credentials import mask
from rampline.errors import ConfigError, RamplineError

FILE = Path(__file__).with_suffix(".yaml")
TAG = "rampline"
# Flow runs of our deployments give a sign of life every 30 s, and two of them may be lost, with a connection or on a
# server that is not ours. Just 90 s would be too few for the third to be in time.
SILENCE_SECONDS = 100
URL_VARIABLE = "RAMPLINE_NOTIFY_URL"
OVERRUN_VARIABLE = "RAMPLINE_OVERRUN_HOURS"
OVERRUN_HOURS = 24.0
# Its `within` is the user's in the UI, unless the variable says it.
OVERRUNS = "rampline: notify of overrunning flow runs"
BLOCK_TYPE, BLOCK = "custom-webhook", "rampline-notify"
SECRET = "address"


def apply_automations(client: SyncPrefectClient, **words: Any) -> list[str]:
    """Make those that are missing; of those that are there, change only what is broken or was asked for.

    To be called after `prefect deploy --all`, because it needs the ids of deployments. Whether an automation is
    switched on is the user's: it is never changed. Returns what was made or changed, a line each, for the user.

    Args:
        words: what the file's `$…` stand for, where it is not the default.

    Raises:
        ConfigError: when `RAMPLINE_NOTIFY_URL` or `RAMPLINE_OVERRUN_HOURS` cannot be used.
    """
    url = notify_url()
    hours = overrun_hours() if url else OVERRUN_HOURS
    try:
        block, lines = _put_block(client, url) if url else (None, [])
    except PrefectHTTPStatusError as error:
        # The server's reason repeats what it was sent.
        raise RamplineError(mask(str(error)).replace(url, "***")) from None
    values = {
        "silence_seconds": SILENCE_SECONDS,
        "overrun_seconds": hours * 3600,
        "ui": str(client.api_url).rstrip("/").removesuffix("/api"),
        "study_deployment": _study_deployment(client),
        "notify_block": block,
        **words,
    }
    wanted = [AutomationCore(**given, tags=[TAG]) for given in automations(values)]
    names = AutomationFilterName(any_=[each.name for each in wanted])
    found = {each.name: each for each in client.read_automations(automations=AutomationFilter(name=names))}
    for each in wanted:
        if each.name in found:
            lines += _repair(client, found[each.name], each)
        else:
            client.create_automation(each)
            lines.append(f"made the automation '{each.name}'" + ("" if each.enabled else ", switched off"))
    return lines


def automations(words: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of the file, with `words` for its `$…`; without those that need one of the words that are `None`."""
    known = {name: value for name, value in words.items() if value is not None}
    filled = yaml.safe_load(Template(FILE.read_text(encoding="utf-8")).safe_substitute(known))
    return [each for each in filled if "$" not in str(each)]


def _repair(client: SyncPrefectClient, found: Automation, wanted: AutomationCore) -> list[str]:
    changes = []
    if not all(_leads_somewhere(client, action) for action in found.actions):
        found.actions = wanted.actions
        changes.append("it pointed to what is gone")
    is_asked = wanted.name == OVERRUNS and OVERRUN_VARIABLE in os.environ
    if is_asked and found.trigger.within != wanted.trigger.within:  # pyright: ignore[reportAttributeAccessIssue]
        found.trigger.within = wanted.trigger.within  # pyright: ignore[reportAttributeAccessIssue]
        changes.append(f"after {overrun_hours() * 3600:g} s")
    if changes:
        client.update_automation(found.id, AutomationCore(**found.model_dump(exclude={"id", "owner_resource"})))
    return [f"changed the automation '{wanted.name}': {', '.join(changes)}"] if changes else []


def _leads_somewhere(client: SyncPrefectClient, action: Any) -> bool:
    """Whether the block or the deployment that an action names is on the server."""
    try:
        if deployment := getattr(action, "deployment_id", None):
            client.read_deployment(deployment)
        if block := getattr(action, "block_document_id", None):
            client.read_block_document(block)
    except ObjectNotFound:
        return False
    return True


def _study_deployment(client: SyncPrefectClient) -> str | None:
    try:
        return str(client.read_deployment_by_name("study/study").id)
    except ObjectNotFound:
        return None


def notify_url() -> str:
    """Where messages go; empty for nowhere.

    Raises:
        ConfigError: when `RAMPLINE_NOTIFY_URL` is no http(s) address.
    """
    url = os.environ.get(URL_VARIABLE, "").strip()
    if url and not url.startswith(("http://", "https://")):
        raise ConfigError(f"{URL_VARIABLE} must be an address that begins with http:// or https://")
    return url


def overrun_hours() -> float:
    """After how many hours a flow run overruns.

    Raises:
        ConfigError: when `RAMPLINE_OVERRUN_HOURS` is no number of hours.
    """
    text = os.environ.get(OVERRUN_VARIABLE, f"{OVERRUN_HOURS:g}")
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    # Prefect's shortest is 10 s; NaN compares as false.
    if not 10 / 3600 <= hours < float("inf"):
        raise ConfigError(f"{OVERRUN_VARIABLE}={text} must be a number of hours, such as 24")
    return hours


def _put_block(client: SyncPrefectClient, url: str) -> tuple[str, list[str]]:
    """The block's id; made if missing, and with a new address where the variable says another."""
    try:
        found = client.read_block_document_by_name(BLOCK, BLOCK_TYPE, include_secrets=True)
    except ObjectNotFound:
        kind = client.read_block_type_by_slug(BLOCK_TYPE).id
        newest = client.get_most_recent_block_schema_for_block_type(kind)
        if newest is None:
            raise RamplineError(f"the Prefect server has no block type {BLOCK_TYPE}") from None
        data = {"name": BLOCK, "url": f"{{{{{SECRET}}}}}", "json_data": {"text": "{{subject}}\n{{body}}"}}
        body = BlockDocumentCreate(
            name=BLOCK, block_type_id=kind, block_schema_id=newest.id, data=data | {"secrets": {SECRET: url}}
        )
        made = client.create_block_document(body, include_secrets=False)
        return str(made.id), [f"made the notification block {BLOCK_TYPE}/{BLOCK}, with the address in {URL_VARIABLE}"]
    if found.data.get("secrets", {}).get(SECRET) == url:
        return str(found.id), []
    client.update_block_document(found.id, BlockDocumentUpdate(data={"secrets": {SECRET: url}}))
    return str(found.id), [f"gave the notification block {BLOCK_TYPE}/{BLOCK} the new address in {URL_VARIABLE}"]
