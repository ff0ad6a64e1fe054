"""The layers: who imports Prefect, who imports TensorFlow, who imports whom; a task is one short step."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_TASK_LINES = 15
WITH_PREFECT = {"servers", "flows", "tasks"}
# The library is all of rampline/ but the four packages that are named here.
MAY_IMPORT = {
    "library": set(),
    "servers": set(),
    "tasks": {"servers"},
    "flows": {"tasks"},
    "cli": {"servers", "flows"},
}


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found
    return found


ALL = [path for folder in ("rampline", *sorted(WITH_PREFECT)) for path in sources(folder)]


def package_of(path: Path) -> str:
    return next((part for part in path.relative_to(ROOT).parts if part in MAY_IMPORT), "library")


@cache
def modules(text: str) -> frozenset[str]:
    """The names of all modules that Python code imports: inside functions, by `import_module` and in strings, too."""
    return frozenset(_imported(text))


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and name_of(node) in ("import_module", "__import__"):
            yield from (str(word.value) for word in node.args if isinstance(word, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^\s*(?:from|import) ([\w.]+)", node.value, re.MULTILINE)


def imports(path: Path) -> set[str]:
    """The top-level packages of those."""
    return {name.partition(".")[0] for name in modules(path.read_text())}


def packages_of_ours(path: Path) -> set[str]:
    """Those of `MAY_IMPORT` that a file imports from, besides its own."""
    names = [name.split(".") for name in modules(path.read_text())]
    packages = {parts[1] for parts in names if parts[0] == "rampline" and len(parts) > 1}
    return packages & set(MAY_IMPORT) - {package_of(path)}


def decorated(path: Path, name: str) -> list[ast.FunctionDef]:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if any(name_of(mark) == name for mark in function.decorator_list)]


def name_of(expression: ast.expr) -> str:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return getattr(called, "id", getattr(called, "attr", ""))


@pytest.mark.parametrize(
    "text",
    [
        "import prefect.flows",
        "def late():\n    from prefect import flow",
        "import importlib\nimportlib.import_module('prefect')",
        "CODE = '''\nimport sys\nfrom prefect import flow\n'''",
    ],
)
def test_an_import_is_seen_wherever_it_stands(text: str) -> None:
    assert "prefect" in {name.partition(".")[0] for name in modules(text)}


def test_prefect_is_imported_in_three_packages_alone() -> None:
    with_prefect = [path for path in ALL if "prefect" in imports(path)]
    assert [str(path) for path in with_prefect if package_of(path) not in WITH_PREFECT] == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_those_below_it_alone(package: str) -> None:
    found = {str(path): packages_of_ours(path) for path in ALL if package_of(path) == package}
    assert found
    assert {path: packages for path, packages in found.items() if packages - MAY_IMPORT[package]} == {}


@pytest.mark.parametrize(
    "path", sources("flows") + sources("tasks"), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_flows_and_tasks_import_no_tensorflow(path: Path) -> None:
    assert not imports(path) & {"tensorflow", "keras", "tensorflow_datasets", "tf_keras"}


@pytest.fixture(scope="module")
def modules_of_all_flows() -> dict[str, str]:
    """The files of all modules that importing every flow and what `compare` prints with loads; links are followed."""
    names = [f"rampline.flows.{path.stem}" for path in sources("flows") if path.stem != "__init__"]
    names += ["rampline.comparison.terminal", "rampline.data.preparation", "rampline.tracking.sync"]
    code = (
        f"import sys, importlib, os.path, json; [importlib.import_module(name) for name in {names}]; "
        "files = {name: getattr(module, '__file__', None) for name, module in sys.modules.items()}; "
        "print(json.dumps({name: os.path.realpath(file) for name, file in files.items() if file}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(result.stdout)


def test_importing_every_flow_loads_nothing_slow(modules_of_all_flows: dict[str, str]) -> None:
    assert not {"tensorflow", "keras", "matplotlib"} & modules_of_all_flows.keys()


def test_no_file_of_ours_is_imported_under_two_names(modules_of_all_flows: dict[str, str]) -> None:
    ours = [file for name, file in modules_of_all_flows.items() if name.split(".")[0] in ("rampline", *WITH_PREFECT)]
    assert {str(path) for path in sources("flows")} < set(ours)
    assert len(ours) == len(set(ours))
    for folder in ("rampline", *WITH_PREFECT, "benchmarks"):
        assert [str(path) for path in sources(folder) if imports(path) & WITH_PREFECT] == []


@pytest.mark.parametrize("path", sources("tasks"), ids=lambda path: path.name)
def test_task_bodies_are_short(path: Path) -> None:
    for function in decorated(path, "task"):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        assert (body[-1].end_lineno or 0) - body[0].lineno < MOST_TASK_LINES, function.name


@pytest.mark.parametrize("path", [p for p in sources("flows") if p.stem != "__init__"], ids=lambda path: path.name)
def test_one_file_is_one_flow_of_its_name(path: Path) -> None:
    assert [function.name for function in decorated(path, "flow")] == [path.stem]


def named(path: Path) -> str:
    """`rampline.jobs.roles`, or `rampline.study` for its `__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "rampline" else ("rampline", *parts)).removesuffix(".__init__")


@cache
def at_run_time(path: Path) -> str:
    """The code of a file without what only its annotations need."""
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    return ast.unparse(tree)


@pytest.mark.parametrize("depth", [None, 2], ids=["files", "packages"])
def test_nothing_is_imported_in_a_circle(depth: int | None) -> None:
    files = {named(path): path for path in ALL}
    arrows: dict[str, set[str]] = {}
    for name, path in files.items():
        names = [(*accumulate(module.split("."), "{}.{}".format),) for module in modules(at_run_time(path))]
        used = {next((name for name in reversed(ways) if name in files), "") for ways in names}
        own = ".".join(name.split(".")[:depth])
        arrows.setdefault(own, set()).update(".".join(other.split(".")[:depth]) for other in used - {"", "rampline"})
        arrows[own].discard(own)
    TopologicalSorter(arrows).prepare()  # raises CycleError, with the circle


def test_a_file_name_stands_once_in_the_library() -> None:
    names = Counter(
        path.stem for path in sources("rampline") + sources("servers") if path.stem not in ("__init__", "__main__")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_imported_is_a_dependency_of_ours() -> None:
    """And not only of a package that we depend on, which may do without it one day."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    declared = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}
    of_modules = packages_distributions()
    used = {name for path in ALL for name in imports(path)} & set(of_modules)
    # The half of pydantic that is written in Rust.
    others = used - {"rampline", "pydantic_core"}
    assert [n for n in sorted(others) if not {d.lower().replace("_", "-") for d in of_modules[n]} & declared] == []
