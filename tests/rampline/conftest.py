"""A few steps of any strategy, with what the roles have told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset

if TYPE_CHECKING:
    from role_functions import RunRoles


@pytest.fixture(scope="session")
def run_roles(digits: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> RunRoles:
    """`run_roles(function, config, ...)`: what that function of `role_functions` returns in each role that trains."""
    import role_functions

    def run(
        function: role_functions.Function, config: RunConfig, *arguments: object, workers: int | None = None
    ) -> list[role_functions.Arrays]:
        folder = tmp_path_factory.mktemp(function.__name__)
        return role_functions.run_roles(function, config, digits, folder, *arguments, workers=workers)

    return run
