"""The tier of the gate that a test is in, as a marker: `make test-quick` is the unit tests."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Where servers, browsers and whole commands are tested, and what a test elsewhere asks for to have some.
STACK = ("flows", "tasks", "deployments", "servers", "rampline/cli", "test_demo.py", "test_wheel.py")
FIXTURES = {
    "stack": {"stack", "prefect_server", "browser", "rampline", "rampline_process", "command", "mlflow_server", "s3"},
    "roles": {"forks"},
    "replicas": {"run_roles"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(_tier_of(item))


def _tier_of(item: pytest.Item) -> str:
    """`unit` is what asks for no other tier, and is marked neither slow nor long."""
    path, names = item.path.relative_to(TESTS), set[str](getattr(item, "fixturenames", ()))
    if any(path.is_relative_to(place) for place in STACK):
        return "stack"
    tiers = [tier for tier, asked in FIXTURES.items() if asked & names]
    if not tiers and any(item.get_closest_marker(name) for name in ("slow", "long")):
        tiers = ["roles"]
    return tiers[0] if tiers else "unit"
