"""The codes of decisions: code and documents agree, and every used code is listed."""

import ast
import re
from pathlib import Path

import pytest

from bus.reasons import CONSTRAINTS, ENDS, MOVES
from placement_worker.core.groups import CODES
from scheduler_worker.core.rules import RULES

ROOT = Path(__file__).parents[2]
SAYING = ("scheduler_worker", "placement_worker/core", "placement_worker/source.py")


def literal_codes() -> set[str]:
    found = set(CODES.values())
    for place in SAYING:
        at = ROOT / place
        for file in [at] if at.is_file() else at.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.keyword)
                    and node.arg == "code"
                    and isinstance(node.value, ast.Constant)
                ):
                    assert isinstance(node.value.value, str)
                    found.add(node.value.value)
    return found


def test_every_code_that_is_said_is_in_the_table() -> None:
    codes = {rule.code for name, make in RULES.items() if (rule := make()) and rule.code}
    known = CONSTRAINTS.keys() | ENDS.keys()
    assert literal_codes() | codes <= known | MOVES.keys()
    assert not MOVES.keys() & known
    assert known & RULES.keys() == {"zone"}
    assert not CONSTRAINTS.keys() & ENDS.keys()


@pytest.mark.parametrize(
    ("table", "title"), [(CONSTRAINTS, "Of hosts"), (ENDS, "Of the whole"), (MOVES, "Of moves")]
)
def test_the_docs_have_the_same_table(table: dict[str, str], title: str) -> None:
    text = (ROOT / "docs" / "reasons.md").read_text()
    part = text.partition(f"### {title}")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE)) == table
