"""The examples in the READMEs of the kits: a command and a page of a feature."""

import io
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from berth import control_room_setup
from berth.kit import command_groups
from bus.feature import PageEntry
from control_room.kit.frame import FeaturePages
from tests.support.command_line import a_served_placement
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.snippets import ROOT
from tests.support.visited_room import a_visited_room

EXAMPLE = re.compile(r"^<!-- as: (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(readme: str) -> dict[str, str]:
    """Return the examples in a README by the names of their files."""
    return dict(EXAMPLE.findall((ROOT / readme).read_text(encoding="utf-8")))


def loaded(source: str) -> Any:
    module = ModuleType("example")
    exec(compile(source, "example.py", "exec"), vars(module))
    return module


async def result_of(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    output, started = io.StringIO(), list[Any]()
    monkeypatch.setattr(command_groups, "say", Console(file=output, width=200))
    monkeypatch.setattr(command_groups, "run", started.append)
    typed = CliRunner().invoke(module.commands, words)
    assert typed.exit_code == 0, typed.output
    await started.pop()
    return output.getvalue()


async def test_the_command_counts_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(examples("berth/kit/README.md")["commands.py"])
    async with a_served_placement(monkeypatch, "c1") as placement:
        await report(placement, a_report(1))
        assert "c1" in await result_of(module, monkeypatch)
        assert "c1" not in await result_of(module, monkeypatch, "--at-least", "2")


async def test_the_page_counts_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = examples("control_room/kit/README.md")
    (tmp_path / "templates").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    pages = FeaturePages(
        navigation={"/cell-count": PageEntry("Cells", "Overview")},
        make=loaded(files["pages.py"]).make,
        templates=tmp_path / "templates",
    )
    monkeypatch.setattr(control_room_setup, "pages_of_features", lambda: [pages])
    async with (
        a_placement("sqlite+aiosqlite://", inline=True) as placement,
        a_visited_room(silent_placement(placement), answered=("cells",)) as room,
    ):
        assert "0 cells" in await room.page("/cell-count")
