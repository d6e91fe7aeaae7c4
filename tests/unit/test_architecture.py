"""The page that leads through the house names nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_every_file_it_names_is_there() -> None:
    named = sorted(set(re.findall(r"`([\w/.*]+(?:\.py|\.md|/))`", PAGE)))
    assert len(named) > 20
    assert [name for name in named if not any(any(base.glob(name)) for base in (ROOT, ROOT / "tests"))] == []
    rooms = re.findall(r"^(\S+)/ ", PAGE.split("```")[1], flags=re.M)
    assert len(rooms) > 6
    assert [room for room in rooms if not (ROOT / room).is_dir()] == []


def test_it_names_every_folder_of_the_house() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    tree = PAGE.split("```")[1]
    assert [folder for folder in sorted(folders) if f"{folder}/" not in tree] == []
