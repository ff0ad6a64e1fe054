"""Documents lead to files and headings that there are; versions agree; what `make` sets up."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deployments/*.md")]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_links_to_files_without_an_ending_lead_somewhere() -> None:
    """Such as `LICENSE`; MkDocs checks all others when it makes the site."""
    links = [(document, link) for document in DOCUMENTS for link in LINK.findall(document.read_text())]
    named = [document.parent / link for document, link in links if "#" not in link and "." not in Path(link).name]
    files = [path for path in named if ":/" not in str(path)]
    assert ROOT / "LICENSE" in files
    assert [str(path) for path in files if not path.exists()] == []


def test_every_page_of_docs_is_reached_from_the_readme() -> None:
    reached, open_ = {ROOT / "README.md"}, [ROOT / "README.md"]
    while open_:
        document = open_.pop()
        links = (link.partition("#")[0] for link in LINK.findall(document.read_text()))
        pages = {(document.parent / link).resolve() for link in links if link.endswith(".md") and "://" not in link}
        open_ += [page for page in pages - reached if page.exists()]
        reached |= pages
    assert [page.name for page in ROOT.glob("docs/*.md") if page not in reached] == []


def test_the_documents_are_a_site(tmp_path: Path) -> None:
    """Strict: a link, or an anchor, that leads nowhere ends it. In a copy: MkDocs looks at each file of .venv, too."""
    project, site = tmp_path / "project", tmp_path / "site"
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*"))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    assert subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120).returncode == 0
    assert "Rampline" in (site / "index.html").read_text()
    pages = {page.parent.name for page in site.glob("docs/*/index.html")}
    assert pages == {document.stem for document in ROOT.glob("docs/*.md")}


def test_the_citation_names_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == project["version"]


def test_the_workflow_runs_the_gate_on_every_python_that_is_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    pythons = workflow["jobs"]["gate"]["strategy"]["matrix"]["python"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert [f"Programming Language :: Python :: {python}" for python in pythons] == [
        name for name in classifiers if "Python :: 3" in name
    ]
    assert any("make test" in step.get("run", "") for step in workflow["jobs"]["gate"]["steps"])


@pytest.mark.parametrize(
    ("stamp", "given", "extras", "made"),
    [
        ("", ["EXTRA=ray gpu"], ["ray", "gpu"], ".complete-gpu-ray"),
        (".usable-gpu-ray", [], ["gpu", "ray"], ".complete-gpu-ray"),
        (".complete-gpu", ["EXTRA=ray"], ["ray"], ".complete-ray"),
    ],
)
def test_make_sets_up_the_extras_named_or_those_that_are_there(
    tmp_path: Path, stamp: str, given: list[str], extras: list[str], made: str
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for file in ("pyproject.toml", "uv.lock", ".tools/bin/uv", f".venv/{stamp or 'file'}"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    command = ["make", "--dry-run", "setup", *given]
    steps = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"--extra (\S+)", steps) == extras
    assert f"touch .venv/{made}\n" in steps
