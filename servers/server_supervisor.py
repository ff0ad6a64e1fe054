"""The supervisor of `rampline up`: starts both servers, the deployments and a worker, watches them, and ends them.

`python -m rampline.servers.server_supervisor` is always in the background, in a session of its own, and prints to
`servers/up.log`. Its first line of standard input are the options, since everybody can read arguments. Who started it
holds that input: if it ends without the word that it may stay, all ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from rampline.credentials import mask
from rampline.errors import ERROR_MARK, InputError, RamplineError
from rampline.jobs.device_queue import owners
from rampline.record.home import Home
from rampline.record.provenance import process_identity
from rampline.servers.prefect_server import hold_start
from rampline.servers.processes import (
    ENDING_SIGNALS,
    counting_signals,
    end_all,
    end_leftovers,
    has_flow_runs,
    hold_lock,
)
from rampline.servers.running import POOL, Servers, state_file
from rampline.servers.secret import client_login, make_login, open_prefect, tighten
from rampline.servers.server_plan import PREFECT_YAML, Plan, Request, check_servers, make_plan
from rampline.servers.services import Service, mlflow_service, prefect_service, worker_environment, worker_service

# Written to its standard input; without it the end of the pipe means that nobody follows any more.
STAY = "stay\n"
POLL_SECONDS = 0.5
# So many ends of a service within so many seconds are too often; the pause before another start doubles with each.
MOST_ENDS = 5
WITHIN_SECONDS = 180.0
FIRST_PAUSE_SECONDS = 1.0
# Looking for flow runs reads the environment of every process.
IDLE_POLL_SECONDS = 10.0


def supervise(request: Request) -> None:
    """Start what is missing, wait until all answers, and watch it until a signal ends this process.

    Whatever way this returns or raises, nothing that it has started is left.

    Raises:
        InputError: when it cannot be done as asked; nothing was started.
        RamplineError: when a server does not start, or dies again and again.
    """
    home, plan, began = request.home, make_plan(request), time.monotonic()
    if end_leftovers(home):
        say(f"ended what an earlier `rampline up` that was killed has left ({took(began)})")
    with hold_lock(home) as is_held:
        if not is_held:
            raise InputError(f"another `rampline up` of {home.root} has just begun: see `rampline status`")
        check_servers(plan)
        make_login(home)
        tighten(home)
        os.environ.update(client_login(home, plan.with_secret))
        Supervisor(plan).run()


class Supervisor:
    """One `rampline up`, from the first process to the last."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._home = plan, plan.request.home
        self._services: list[Service] = []
        self._ready = False
        self._began = time.monotonic()

    def run(self) -> None:
        """Start, watch, end."""
        try:
            self._start()
            watch = Watch(self._services, on_start=self._renew_state)
            request = self._plan.request
            idle = Idle(request.when_idle, 60 * request.idle_minutes, is_busy=lambda: is_busy(self._home))
            while True:
                time.sleep(POLL_SECONDS)
                watch.look()
                idle.look()
        except SystemExit:
            # After that, a signal is how a user ends it.
            if not self._ready:
                raise
        finally:
            with counting_signals() as count:
                self._end(count)

    def _start(self) -> None:
        plan = self._plan
        self._start_servers()
        self._deploy()
        worker, began = worker_service(plan), time.monotonic()
        self._start_service(worker)
        worker.wait_for_answer()
        step("worker", f"waits for flow runs in work pool {POOL} ({took(began)})")
        self._ready = True
        self._write_state()

    def _start_servers(self) -> None:
        plan = self._plan
        servers = [prefect_service(plan)] * plan.starts_prefect + [mlflow_service(plan)] * plan.starts_mlflow
        own = {service.name: service for service in servers}
        with hold_start(self._home) if plan.starts_prefect else nullcontext():
            for service in servers:
                self._start_service(service)
            # MLflow first, which is quicker.
            for name, title, url in (("mlflow", "MLflow", plan.mlflow_url), ("prefect", "Prefect", plan.prefect_url)):
                if name in own:
                    own[name].wait_for_answer()
                step(title, f"{url} ({f'started, {took(self._began)}' if name in own else 'found'})")

    def _deploy(self) -> None:
        # Both bring in Prefect, while the servers start.
        import httpx

        from rampline.servers.automations import apply_automations
        from rampline.servers.deployments import add_schedules, code_version, deploy, ensure_device_limit, ensure_pool

        plan, began = self._plan, time.monotonic()
        try:
            with open_prefect(self._home, plan.prefect_api_url) as client:
                changes = ensure_pool(client)
                deploy(self._home, plan.folder, worker_environment(plan))
                add_schedules(client)
                step("flows", f"deployed from {PREFECT_YAML}, version {code_version()['version']} ({took(began)})")
                # Before the limit: they refuse settings that cannot be used.
                made = apply_automations(client)
                slots, is_ours = plan.request.cpu_slots, plan.starts_prefect
                changes += ensure_device_limit(client, cpu_slots=slots, is_ours=is_ours) + made
        except httpx.HTTPError as error:
            raise RamplineError(f"the Prefect server at {plan.prefect_url} refuses: {error}") from error
        for line in changes:
            step("", line)

    def _start_service(self, service: Service) -> None:
        service.start()
        self._services.append(service)
        self._write_state()

    def _end(self, count: Callable[[], int]) -> None:
        first = "flow runs save a checkpoint, then " if has_flow_runs(self._home) else ""
        say(f"ending: {first}the servers end")
        end_all(self._home, is_urgent=lambda: count() > 0)
        for service in self._services:
            if service.process is not None:
                service.process.wait()
        say("all ended")

    def _renew_state(self) -> None:
        try:
            self._write_state()
        except OSError as error:  # on a full disk all that runs goes on; `rampline status` has the process before
            say(f"{state_file(self._home)} cannot be written: {error.strerror}")

    def _write_state(self) -> None:
        plan = self._plan
        servers = Servers(
            pid=os.getpid(),
            identity=process_identity(),
            ready=self._ready,
            prefect_api_url=plan.prefect_api_url,
            mlflow_url=plan.mlflow_url,
            processes={service.name: service.state for service in self._services if service.state is not None},
            with_secret=plan.with_secret,
        )
        servers.write(state_file(self._home))


class Watch:
    """Keeps services running that have been started; `on_start` is called after one was started again."""

    def __init__(self, services: Sequence[Service], *, on_start: Callable[[], None]) -> None:
        self._services, self._on_start = services, on_start
        self._ends: dict[str, list[float]] = {service.name: [] for service in services}
        self._awaited: set[str] = set()

    def look(self) -> None:
        """Start again what has ended; to be called every `POLL_SECONDS`.

        Raises:
            RamplineError: when a service ends too often.
        """
        for service in self._services:
            if ended := service.how_it_ended():
                self._start_again(service, ended)
            elif service.name in self._awaited and service.answers():
                self._awaited.discard(service.name)
                say(f"{service.title} is back")

    def _start_again(self, service: Service, ended: str) -> None:
        now = time.monotonic()
        ends = [end for end in self._ends[service.name] if now - end < WITHIN_SECONDS] + [now]
        self._ends[service.name] = ends
        if len(ends) >= MOST_ENDS:
            seconds = ends[-1] - ends[0]
            raise RamplineError(
                f"{service.title} ended {len(ends)} times within {seconds:.0f} s, the last time with {ended}: "
                f"{service.last_line()}; see {service.log}"
            )
        pause = FIRST_PAUSE_SECONDS * 2 ** (len(ends) - 1)
        say(f"{service.title} ended ({ended}) and is started again in {pause:.0f} s; see {service.log}")
        time.sleep(pause)
        service.start()
        self._awaited.add(service.name)
        self._on_start()


def is_busy(home: Home) -> bool:
    """Whether a flow run of the worker is in progress here, or a `rampline run` that has devices or waits for some."""
    return has_flow_runs(home) or bool(owners(home))


class Idle:
    """Runs a shell command once nothing has run for so long, also since the start, and again after the next work.

    A rented machine costs. An empty command is none.
    """

    def __init__(self, command: str, seconds: float, *, is_busy: Callable[[], bool]) -> None:
        self._command, self._seconds, self._is_busy = command, seconds, is_busy
        self._busy_at = self._looked_at = time.monotonic()
        self._is_done = False

    def look(self) -> None:
        """To be called every `POLL_SECONDS`; it looks less often."""
        now = time.monotonic()
        if not self._command or now - self._looked_at < min(IDLE_POLL_SECONDS, self._seconds):
            return
        self._looked_at = now
        if self._is_busy():
            self._busy_at, self._is_done = now, False
        elif not self._is_done and now - self._busy_at >= self._seconds:
            self._is_done = True
            say(f"nothing has run for {self._seconds / 60:g} minutes: {mask(self._command)}")
            # Not waited for: it may be what ends this process.
            subprocess.Popen(self._command, shell=True, stdin=subprocess.DEVNULL, start_new_session=True)


def took(began: float) -> str:
    """Seconds since then, such as `12 s`."""
    return f"{time.monotonic() - began:.0f} s"


def say(line: str) -> None:
    """One line, for who follows; a full disk keeps nothing from being ended properly."""
    with suppress(OSError):
        print(line, flush=True)  # noqa: T201


def step(subject: str, text: str) -> None:
    """One line about one thing that is done."""
    say(f"{subject:<11}{text}")


def _end_without_follower() -> None:
    # Where all is ending already, a signal would be the second one, which waits for nothing.
    if sys.stdin.readline() != STAY and signal.getsignal(signal.SIGTERM) is _leave:
        os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Supervise as the first line of standard input says, fields of a `Request` in JSON; returns the exit status."""
    for number in ENDING_SIGNALS:
        signal.signal(number, _leave)
    options = sys.stdin.readline()
    threading.Thread(target=_end_without_follower, name="follower-watch", daemon=True).start()
    try:
        supervise(Request(home=Home.from_environment(), **json.loads(options)))
    except (RamplineError, OSError) as error:
        say(f"{ERROR_MARK}{mask(' '.join(str(error).split()))}")
        return error.exit_status if isinstance(error, RamplineError) else RamplineError.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
