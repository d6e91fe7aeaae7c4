"""ARCHITECTURE.md and the README.md of each package name only files that exist; contracts cover `bus`."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGES = sorted(
    path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "deploy", "bench")
)
PAGES = [PAGE, *(package / "README.md" for package in PACKAGES)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_named_files_exist(page: Path) -> None:
    named = sorted(set(re.findall(r"`([\w/.*]+(?:\.py|\.md|/))`", page.read_text())))
    assert named
    bases = (ROOT, ROOT / "tests", page.parent)
    assert [name for name in named if not any(any(base.glob(name)) for base in bases)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pages_are_short(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= 1500
    if page != PAGE:
        assert len(text.splitlines()) <= 60


def test_all_packages_are_listed() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    listed = PAGE.read_text().split("```")[1]
    assert [folder for folder in sorted(folders) if f"{folder}/" not in listed] == []


def test_an_import_contract_covers_every_module_of_bus() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    covered = {module for contract in contracts for module in contract.get("source_modules", ())}
    modules = {f"bus.{path.stem}" for path in (ROOT / "bus").glob("*.py")} - {"bus.__init__"}
    assert modules <= covered
