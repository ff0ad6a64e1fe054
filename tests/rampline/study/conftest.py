"""Study files that tests write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rampline.errors import ConfigError
from rampline.study import load_study

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(content)` makes `my-study.yaml` and returns its path."""

    def write(content: str | bytes, name: str = "my-study.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def refusal() -> Callable[..., str]:
    """`refusal(path)` is the one line with which `load_study` refuses these arguments."""

    def refusal(*arguments, **keywords) -> str:
        with pytest.raises(ConfigError) as failure:
            load_study(*arguments, **keywords)
        assert "\n" not in str(failure.value)
        return str(failure.value)

    return refusal
