"""MLflow's notation of registered models, and what is something else."""

import pytest

from rampline.registry.candidate import ModelReference, parse_reference


@pytest.mark.parametrize("text", ["models:/rampline-digits@champion", "rampline-digits@champion"])
def test_an_alias_with_and_without_the_scheme(text: str) -> None:
    assert parse_reference(text) == ModelReference(name="rampline-digits", alias="champion")


def test_a_version() -> None:
    assert parse_reference("models:/rampline-digits/3") == ModelReference(name="rampline-digits", version="3")


@pytest.mark.parametrize("text", ["0123abcd", "runs/digits/e1/baseline", "a@b/c", "models:/m-0123", ""])
def test_run_ids_and_paths_are_none(text: str) -> None:
    assert parse_reference(text) is None
