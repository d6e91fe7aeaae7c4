"""The commands and examples of docs/, the README and the pages of features. Tests run them page by page, in
order.

A comment directly above a fenced block is a directive:

    <!-- with: services -->              the page needs RabbitMQ and PostgreSQL
    <!-- with: cluster -->               the page needs three RabbitMQ nodes and a PostgreSQL with a standby
    <!-- as: mine/rules.py -->           write the block to this file, for later blocks
    <!-- prints -->                      the expected output of the previous block; `…` matches anything
    <!-- tested -->                      a separate test covers the block
    <!-- not run: REASON -->             the block cannot run here

A command must exit with 0 unless a comment on its line says `exit 1`, or `exit 0 or 1`. BUILD is the last
booted build. Addresses are replaced by free ones. A command that does not end runs until the end of the
page.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "features").glob("*/*.md")),
)

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    language: str
    text: str
    marks: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def played(self) -> bool:
        """Return whether a test runs this snippet."""
        return self.language in ("sh", "python") and not self.marks.keys() & {"not run", "tested"}


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        name, marks = str(page.relative_to(ROOT)), _marks(match["mark"])
        found.append(Snippet(name, line, match["language"], dedent(match["text"]), marks))
    return found


def _marks(reply: str | None) -> dict[str, str]:
    marks = {}
    if reply and reply.startswith("not run: "):
        return {"not run": reply.removeprefix("not run: ")}
    for part in (reply or "").split("; "):
        key, _, value = part.partition(": ")
        if key in ("with", "as", "prints", "not run", "tested"):
            marks[key] = value
    return marks


def needs(page: Path) -> str:
    """Return "services" or "cluster" if the page needs it, otherwise an empty string."""
    found = (snippet.marks.get("with", "") for snippet in snippets(page))
    return next((needed for needed in found if needed in ("services", "cluster")), "")


def a_command(folder: Path) -> None:
    """Make `berth` a command of this Python in a folder of the search path."""
    file = folder / "berth"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m berth "$@"\n')
    file.chmod(0o755)
