"""Flow runs of the deployments under a `rampline up`, started and watched as the UI does it, through REST."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
from command_line import wait_until
from up_servers import UpServers

QUICK = {"data.limit": "20", "explain.steps": "0", "parity.steps": "0"}
FOR_EVER = 100_000  # epochs
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
FLOW_SECONDS = 200


class Flows(UpServers):
    """A `rampline up` whose flow runs a test starts, follows and disturbs."""

    def start(self, deployment: str, **parameters: Any) -> str:
        found = self.api.request("GET", f"/deployments/name/{deployment}/{deployment}")["id"]
        overrides = QUICK | parameters.pop("overrides", {})
        body = {"parameters": {**parameters, "overrides": overrides}, "state": {"type": "SCHEDULED"}}
        return self.api.post(f"/deployments/{found}/create_flow_run", body)["id"]

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        return self.api.request("GET", f"/flow_runs/{flow_run}")

    def children(self, flow_run: str) -> dict[str, dict[str, Any]]:
        """Flow runs below it, by name."""
        body = {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}}}
        return {child["name"]: child for child in self.api.post("/flow_runs/filter", body)}

    def until(self, flow_run: str, *states: str) -> dict[str, Any]:
        """The flow run, as soon as its state has one of these names or types."""
        found = {}

        def is_there() -> bool:
            found.update(self.flow_run(flow_run))
            return bool({found["state_name"], found["state_type"]} & set(states))

        # Each answer takes Prefect's server time of a core that the flow run has need of.
        wait_until(is_there, FLOW_SECONDS, every=0.4)
        return found

    def log(self, flow_run: str) -> list[str]:
        """Its lines and those of its children, oldest first."""
        children = [child["id"] for child in self.children(flow_run).values()]
        chosen = {"flow_run_id": {"any_": [flow_run, *children]}}
        lines: list[str] = []
        while True:  # at most 200 at once
            body = {"logs": chosen, "sort": "TIMESTAMP_ASC", "offset": len(lines)}
            more = [line["message"] for line in self.api.post("/logs/filter", body)]
            if not more:
                return lines
            lines += more

    def roles(self) -> list[int]:
        """Process ids of TensorFlow processes of runs."""
        return [process.pid for process in self.processes() if "rampline.worker" in _command(process)]

    def slots_in_use(self) -> float:
        return self.api.request("GET", "/v2/concurrency_limits/cpu-slots")["active_slots"]

    def until_training(self, flow_run: str, run: str) -> Path:
        """The run's directory, as soon as it has trained an epoch."""
        name = flow_run.replace("-", "")[-6:]
        wait_until(lambda: bool(_epochs(self.home.runs, name, run)), FLOW_SECONDS)
        (events,) = self.home.runs.glob(f"*/*-{name}/{run}/events.jsonl")
        return events.parent

    def kill(self, flow_run: str) -> None:
        """`kill -9` of the process that runs the flow."""
        for process in self.processes():
            if "prefect.engine" in _command(process) and flow_run in str(process.environ()):
                process.send_signal(signal.SIGKILL)

    def retry(self, flow_run: str) -> None:
        """What the button does on the page of a flow run that has ended."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
        answer = self.api.post(f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True})
        assert answer["status"] == "ACCEPT"

    def cancel(self, flow_run: str) -> None:
        """What the button does."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        answer = self.api.post(f"/flow_runs/{flow_run}/set_state", {"state": state})
        assert answer["status"] == "ACCEPT"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _epochs(runs: Path, execution: str, run: str) -> list[dict[str, Any]]:
    lines = [
        line for file in runs.glob(f"*/*-{execution}/{run}/events.jsonl") for line in file.read_text().splitlines()
    ]
    return [event for line in lines if (event := json.loads(line))["event"] == "epoch"]
