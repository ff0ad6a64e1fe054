"""The layers: flows and tasks know no TensorFlow, rampline knows no Prefect, a task is one short step."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_TASK_LINES = 15


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found
    return found


def imports(path: Path) -> set[str]:
    """Top-level packages that a file imports, also inside functions."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.partition(".")[0])
    return packages


def decorated(path: Path, name: str) -> list[ast.FunctionDef]:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if any(name_of(mark) == name for mark in function.decorator_list)]


def name_of(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.id if isinstance(called, ast.Name) else ""


@pytest.mark.parametrize(
    "path", sources("flows") + sources("tasks"), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_flows_and_tasks_import_no_tensorflow(path: Path) -> None:
    assert not imports(path) & {"tensorflow", "keras", "tensorflow_datasets", "tf_keras"}


def test_rampline_imports_no_prefect() -> None:
    assert [str(path) for path in sources("rampline") if imports(path) & {"prefect", "tasks", "flows"}] == []


def test_importing_every_flow_loads_no_tensorflow() -> None:
    names = [f"flows.{path.stem}" for path in sources("flows") if path.stem != "__init__"]
    code = f"import sys, importlib; [importlib.import_module(n) for n in {names}]; print('tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("path", sources("tasks"), ids=lambda path: path.name)
def test_task_bodies_are_short(path: Path) -> None:
    for function in decorated(path, "task"):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        assert (body[-1].end_lineno or 0) - body[0].lineno < MOST_TASK_LINES, function.name


@pytest.mark.parametrize("path", [p for p in sources("flows") if p.stem != "__init__"], ids=lambda path: path.name)
def test_one_file_is_one_flow_of_its_name(path: Path) -> None:
    assert [function.name for function in decorated(path, "flow")] == [path.stem]
