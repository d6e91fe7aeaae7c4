"""A new feature, as scripts/new-feature writes it into a copy of the tree: complete, and removed by hand."""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.snippets import ROOT, snippets

COPIED = ("berth", "features", "scripts", "pyproject.toml", "mkdocs.yml", "conftest.py")
KINDS = ("rule", "table", "page", "query", "weigher")
# How-to pages: the first block begins a feature, the others are files of it.
PAGES = {"claim-rule": "spread_projects", "page": "listed_projects", "weigher": "cool_hosts"}


def names(kind: str) -> str:
    return f"begun_{kind}"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with a feature of each kind, and those of the how-to pages."""
    tree = tmp_path_factory.mktemp("tree")
    for path in ROOT.iterdir():
        if path.name not in COPIED:
            (tree / path.name).symlink_to(path)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name)  # with the bytecode, which stays valid
        else:
            shutil.copy2(ROOT / name, tree / name)
    for kind in KINDS:
        run(tree, "scripts/new-feature", names(kind), f"--{kind}", "--no-pages")
    for page in PAGES:
        begin, *files = [each for each in snippets(ROOT / f"docs/howto/{page}.md") if "tested" in each.marks]
        run(tree, *shlex.split(begin.text), "--no-pages")
        for file in files:
            (tree / file.marks["as"]).write_text(file.text)
    return tree


def run(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def folders() -> list[str]:
    return [f"features/{name}" for name in (*map(names, KINDS), *PAGES.values())]


def test_its_tests_pass(tree: Path) -> None:
    printed = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not services", *folders())
    assert "passed" in printed and " failed" not in printed


def test_it_passes_the_lint(tree: Path) -> None:
    run(tree, "-m", "ruff", "check", "--no-cache", *folders())
    run(tree, "-m", "ruff", "format", "--no-cache", "--check", *folders())


@pytest.mark.slow
@pytest.mark.soak
def test_it_passes_the_type_check_and_imports_what_it_may(tree: Path) -> None:
    assert runpy.run_path(str(ROOT / "scripts/feature-imports"))["problems_of"](tree) == []
    run(tree, "-m", "mypy", "--cache-dir", str(tree / "types"), *folders())


def test_it_is_removed_by_deleting_its_folder_and_its_lines(tree: Path) -> None:
    for name in ("berth/features.py", "mkdocs.yml"):
        lines = (tree / name).read_text().splitlines()
        left = [line for line in lines if not any(Path(folder).name in line for folder in folders())]
        assert left == (ROOT / name).read_text().splitlines()
        assert len(lines) == len(left) + len(folders())


@pytest.mark.parametrize("name", ["Tides", "tides__high", "class", "1st", "t" * 31, names("rule")])
def test_an_unusable_name_is_refused(name: str, tree: Path) -> None:
    assert runpy.run_path(str(tree / "scripts/new-feature"))["why_unusable"](name) != ""
