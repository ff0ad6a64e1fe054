"""What a run costs per hour: its own price, or that of its machines."""

import pytest

from rampline.errors import ConfigError
from rampline.study import load_study
from rampline.training.early_stop import time_limit

PRICES = """
prices: {one: 0.83, four: 2}
base: {cluster: {machine: one}}
runs:
  priced: {}
  scaled: {set: {cluster: {machine: four, machines: 3}}}
  own: {set: {cluster: {machine: unknown, price_per_hour: 5.5}}}
  free: {set: {cluster: {machine: null}}}
"""


def prices(path: str, **overrides: str) -> dict[str, float | None]:
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    return {run.name: run.config.cluster.price_per_hour for run in load_study(path, overrides=overrides).runs}


def test_a_run_costs_what_its_machines_cost(write):
    assert prices(write(PRICES)) == {"priced": 0.83, "scaled": 6, "own": 5.5, "free": None}


def test_machines_can_be_set(write):
    path = write(PRICES)
    assert prices(path, cluster__machine="four", cluster__machines="2")["free"] == 4
    assert prices(path, cluster__machine="null") == {"priced": None, "scaled": None, "own": 5.5, "free": None}
    own = {"cluster.machine": "mine", "cluster.machines": "2", "cluster.price_per_hour": "9"}
    clusters = [run.config.cluster for run in load_study(path, overrides=own).runs]
    # A cost at such a price is told of no machine.
    assert {(each.price_per_hour, each.machine, each.machines) for each in clusters} == {(9, None, 1)}


def test_the_cost_that_stops_a_run_is_at_the_price_of_its_machine(write):
    path = write(PRICES)
    study = load_study(path, only=["priced", "own"], overrides={"stop.max_cost_usd": "0.83"})
    assert [time_limit(run.config)[0] for run in study.runs] == pytest.approx([3600, 3600 * 0.83 / 5.5])
    with pytest.raises(
        ConfigError, match=r"run free: stop\.max_cost_usd=0\.83 is not allowed: it must be null without"
    ):
        load_study(path, overrides={"stop.max_cost_usd": "0.83"})


@pytest.mark.parametrize(
    "content, message",
    [
        (
            "prices: {a: 1, b: 2}\nruns: {r: {set: {cluster: {machine: c}}}}",
            "run r: cluster.machine='c' is not allowed: it must be one of the study's prices: a, b",
        ),
        (
            "runs: {r: {set: {cluster: {machine: c}}}}",
            "run r: cluster.machine='c' is not allowed: it must be null, as the study has no prices",
        ),
        ("prices: {a: -1}\nruns: {r: {}}", "prices.a=-1 is not allowed: it must be a number at least 0"),
        ("prices: {4: 1}\nruns: {r: {}}", "a key of prices=4 is not allowed: it must be a non-empty text"),
        ("prices: [1]\nruns: {r: {}}", "prices=[1] is not allowed: it must be a mapping of keys, such as prices: {…}"),
    ],
)
def test_wrong_prices(write, refusal, content, message):
    assert refusal(write(content)) == f"my-study.yaml: {message}"
