"""`kill -9` of every kind of role at every kind of moment: the run completes by itself, with the same bits."""

import pytest
from faults import MOMENTS, Faults, assert_bit_equal, examples_seen, run_with
from table import Table

from rampline.record.run_directory import RunDirectory

KILLS = 5
SYNCHRONOUS = {"single": ("chief-0",), "multi_worker": ("worker-0", "worker-1")}
CASES = [(strategy, role) for strategy, roles in SYNCHRONOUS.items() for role in roles]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("strategy", "role"), CASES, ids=[f"{strategy}-{role}" for strategy, role in CASES])
def test_killed_role_of_a_synchronous_run(
    strategy: str, role: str, moment: str, make_run, uninterrupted, table: Table
) -> None:
    directory: RunDirectory = make_run(strategy)
    costs = run_with(Faults(directory, role, moment, count=KILLS))
    whole = uninterrupted(strategy)
    assert_bit_equal(directory, whole)
    assert examples_seen(directory) == examples_seen(whole)
    table.add(f"kill -9 of {role}, {strategy}", moment, costs, "weights bit-equal, same examples")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("role", ["chief-0", "worker-1", "ps-0"])
def test_killed_role_of_a_parameter_server_run(role: str, moment: str, make_run, table: Table) -> None:
    directory: RunDirectory = make_run("parameter_server")
    lines: list[str] = []
    costs = run_with(Faults(directory, role, moment, count=KILLS), lines)
    in_place = [line for line in lines if "the others go on" in line]
    # A worker that was lost before the chief knew it takes the job with it.
    assert len(in_place) == (KILLS if role == "worker-1" and moment != "start-up" else len(in_place))
    assert not in_place or role == "worker-1"
    table.add(f"kill -9 of {role}, parameter_server", moment, costs, "completes")
