"""ARCHITECTURE.md names only files that exist, and all packages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_named_files_exist() -> None:
    named = sorted(set(re.findall(r"`([\w/.*]+(?:\.py|\.md|/))`", PAGE)))
    assert len(named) > 20
    assert [name for name in named if not any(any(base.glob(name)) for base in (ROOT, ROOT / "tests"))] == []
    folders = re.findall(r"^(\S+)/ ", PAGE.split("```")[1], flags=re.M)
    assert len(folders) > 6
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_all_packages_are_listed() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    tree = PAGE.split("```")[1]
    assert [folder for folder in sorted(folders) if f"{folder}/" not in tree] == []
