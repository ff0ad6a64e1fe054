"""`rampline up`: both servers, the deployments and a worker, for as long as it runs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rampline.errors import InputError
from rampline.record.home import Home
from rampline.servers.addresses import is_any, is_loopback
from rampline.servers.caretaker import caretaker
from rampline.servers.deploy import PREFECT_YAML, deploy, version
from rampline.servers.display import Display, Stopwatch
from rampline.servers.ending import end_all, end_leftovers, has_flow_runs
from rampline.servers.prefect_objects import apply, ensure_pool, keeping_schedules
from rampline.servers.processes import counting_signals, created, hold_lock, lock_holder, marked
from rampline.servers.running import POOL, Servers, running_servers, servers_folder, write_state
from rampline.servers.secret import client_login, make_login, sign_in_lines, tighten
from rampline.servers.server_plan import Plan, Request, check_servers, make_plan
from rampline.servers.service import Service
from rampline.servers.services import mlflow_service, prefect_service, worker_environment, worker_service
from rampline.servers.watch import POLL_SECONDS, Watch

# With these begins the line that says that all is up; `--detach` waits for it.
LAST_WORDS = "logs in"


def run_servers(request: Request, display: Display) -> None:
    """Start what is missing, wait until all answers, and watch it until a signal ends this process.

    Whatever way this returns or raises, nothing that it has started is left. Where the servers of this home run
    already, their addresses are told, and that is all.

    Raises:
        InputError: when it cannot be done as asked; nothing was started.
        RamplineError: when a server does not start, or dies again and again.
    """
    home, plan = request.home, make_plan(request)
    with hold_lock(home) as is_held:
        if not is_held:
            _tell_of_other(home, display)
            return
        _clean_up(home, display)
        check_servers(plan)
        make_login(home)
        tighten(home)
        os.environ.update(client_login(home, plan.with_secret))
        with caretaker(home, dict(os.environ)) as replace_caretaker:
            Up(plan, display, replace_caretaker).run()


class Up:
    """One `rampline up`, from the first process to the last."""

    def __init__(self, plan: Plan, display: Display, replace_caretaker: Callable[[], None]) -> None:
        self._plan, self._display, self._replace_caretaker = plan, display, replace_caretaker
        self._home = plan.request.home
        self._services: list[Service] = []
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._ready = False
        self._clock = Stopwatch()

    def run(self) -> None:
        """Start, watch, end."""
        try:
            self._start()
            self._watch()
        except (KeyboardInterrupt, SystemExit):
            # After that, a signal is how a user ends it.
            if not self._ready:
                raise
        finally:
            with counting_signals() as count:
                self._end(count)

    def _start(self) -> None:
        plan, display = self._plan, self._display
        servers = [prefect_service(plan)] * plan.starts_prefect + [mlflow_service(plan)] * plan.starts_mlflow
        for service in servers:
            self._start_service(service)
        self._wait_for_servers(servers)
        environment = worker_environment(plan)
        with display.waiting("deploying the flows") as clock:
            changes = ensure_pool(plan.api)
            with keeping_schedules(plan.api):
                deploy(self._home, plan.folder, environment)
            display.step("flows", f"deployed from {PREFECT_YAML}, version {version()} ({clock})")
        for line in changes + apply(plan.api, cpu_slots=plan.request.cpu_slots):
            display.step("", line)
        worker = worker_service(plan)
        with display.waiting("starting the worker") as clock:
            self._start_service(worker)
            worker.wait_for_answer()
            display.step("worker", f"waits for flow runs in work pool {POOL} ({clock})")
        self._ready = True
        self._write_state()

    def _start_service(self, service: Service) -> None:
        service.start()
        self._services.append(service)
        self._write_state()

    def _wait_for_servers(self, servers: Sequence[Service]) -> None:
        plan, own = self._plan, {service.name: service for service in servers}
        # MLflow first, which is quicker.
        for name, title, url in (("mlflow", "MLflow", plan.mlflow_url), ("prefect", "Prefect", plan.prefect_url)):
            if name in own:
                with self._display.waiting(f"waiting for {title} at {url}"):
                    own[name].wait_for_answer()
            self._display.step(title, f"{url} ({f'started, {self._clock}' if name in own else 'found'})")

    def _watch(self) -> None:
        for line in [*clicks(self._plan.prefect_url, self._plan.mlflow_url), *elsewhere(self._plan)]:
            self._display.say(line)
        tell_sign_in(self._home, self._display)
        how = "Ctrl-C, or `rampline down`," if self._display.is_terminal else "`rampline down`"
        self._display.say(f"{LAST_WORDS} {servers_folder(self._home)}; {how} ends all of it")
        watch = Watch(self._services, say=self._display.say, on_start=self._write_state)
        while True:
            time.sleep(POLL_SECONDS)
            watch.look()
            self._replace_caretaker()

    def _end(self, count: Callable[[], int]) -> None:
        first = "flow runs save a checkpoint, then " if has_flow_runs(self._home) else ""
        how = " (Ctrl-C again: at once)" if first and self._display.is_terminal else ""
        self._display.say(f"ending: {first}the servers end{how}")
        end_all(self._home, is_urgent=lambda: count() > 0)
        for service in self._services:
            if service.process is not None:
                service.process.wait()
        self._display.say("all ended")

    def _write_state(self) -> None:
        plan = self._plan
        servers = Servers(
            pid=os.getpid(),
            created=created(os.getpid()),
            started_at=self._started_at,
            ready=self._ready,
            prefect_url=plan.prefect_url,
            prefect_api_url=plan.prefect_api_url,
            mlflow_url=plan.mlflow_url,
            processes={service.name: service.state for service in self._services if service.state is not None},
            with_secret=plan.with_secret,
        )
        write_state(self._home, servers)


def clicks(prefect_url: str, mlflow_url: str) -> list[str]:
    """What to open, and what to click there."""
    return [
        "",
        f"train      {prefect_url}/deployments: study, Run, Custom run, fill in the form, Submit",
        f"compare    {mlflow_url}: an experiment, tick its runs, Compare",
        "",
    ]


def tell_sign_in(home: Home, display: Display) -> None:
    """How to get in; the links hold the secret, so only a terminal is shown them."""
    for line in sign_in_lines(home, with_secret=display.is_terminal):
        display.say(line)


def elsewhere(plan: Plan) -> list[str]:
    """What a user should know who lets other machines in."""
    if is_loopback(plan.address):
        return []
    name = socket.gethostname() if is_any(plan.address) else plan.address
    return [
        f"from other machines: {name} instead, with the passwords; neither server encrypts, so keep to a private "
        "network, or put a proxy with TLS before them (and its name into RAMPLINE_ALLOWED_HOSTS)",
        "",
    ]


def _tell_of_other(home: Home, display: Display) -> None:
    """Started twice: the addresses, if all is well."""
    holder = lock_holder(home)
    servers = running_servers(home)
    if servers is None:
        raise InputError(
            f"`rampline up` of {home.root} (process {holder}) is starting or ending, or a server does not answer: "
            "see `rampline status`; `rampline down` ends it"
        )
    display.say(f"already up in {home.root} (process {servers.pid}); `rampline down` ends it")
    for line in clicks(servers.prefect_url, servers.mlflow_url):
        display.say(line)
    tell_sign_in(home, display)


def _clean_up(home: Home, display: Display) -> None:
    """An earlier one was killed: what it has left holds the ports."""
    if next(marked(home), None):
        with display.waiting("ending what an earlier `rampline up` that was killed has left") as clock:
            end_leftovers(home)
            display.say(f"ended what an earlier `rampline up` that was killed has left ({clock})")
