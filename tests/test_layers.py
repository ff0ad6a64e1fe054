"""The layers: flows and tasks know no TensorFlow, rampline knows no Prefect, a task is one short step."""

import ast
import json
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
    assert [
        str(path) for path in sources("rampline") if "servers" not in path.parts and "prefect" in imports(path)
    ] == []


@pytest.fixture(scope="module")
def modules_of_all_flows() -> dict[str, str]:
    """The files of all modules that importing every flow loads, by name of module; links are followed."""
    names = [f"rampline.flows.{path.stem}" for path in sources("flows") if path.stem != "__init__"]
    code = (
        f"import sys, importlib, os.path, json; [importlib.import_module(name) for name in {names}]; "
        "files = {name: getattr(module, '__file__', None) for name, module in sys.modules.items()}; "
        "print(json.dumps({name: os.path.realpath(file) for name, file in files.items() if file}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(result.stdout)


def test_importing_every_flow_loads_no_tensorflow(modules_of_all_flows: dict[str, str]) -> None:
    assert "tensorflow" not in modules_of_all_flows


def test_no_file_of_ours_is_imported_under_two_names(modules_of_all_flows: dict[str, str]) -> None:
    ours = [file for file in modules_of_all_flows.values() if Path(file).is_relative_to(ROOT)]
    ours = [file for file in ours if not Path(file).is_relative_to(ROOT / ".venv")]
    assert {str(path) for path in sources("flows")} < set(ours)
    assert len(ours) == len(set(ours))
    for folder in ("rampline", "flows", "tasks", "tests", "benchmarks"):
        assert [str(path) for path in sources(folder) if imports(path) & {"flows", "tasks"}] == []


@pytest.mark.parametrize("path", sources("tasks"), ids=lambda path: path.name)
def test_task_bodies_are_short(path: Path) -> None:
    for function in decorated(path, "task"):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        assert (body[-1].end_lineno or 0) - body[0].lineno < MOST_TASK_LINES, function.name


@pytest.mark.parametrize("path", [p for p in sources("flows") if p.stem != "__init__"], ids=lambda path: path.name)
def test_one_file_is_one_flow_of_its_name(path: Path) -> None:
    assert [function.name for function in decorated(path, "flow")] == [path.stem]
