"""`--dry-run`: every command that deletes, closes or moves has the option."""

from typing import Any

import pytest

from berth import command_table
from berth.__main__ import app
from berth.commands.feature_commands import missing_features

# Verbs of commands that delete, close or move something, or that undo such an act.
VERBS = {
    "abort", "adopt", "cancel", "confirm", "delete", "disable", "drain", "drop", "evacuate", "finish",
    "force", "force-down", "heal", "import", "make-room", "move", "rebalance", "rebuild", "rehome", "release",
    "replay", "reset", "resize", "revert", "shelve", "sweep", "unshelve",
}  # fmt: skip

# Commands `set` that delete limits or take hosts out of an object.
SETS = {
    "host headroom set", "host maintenance set", "project quota set", "project reservation set",
    "project share set", "resource aggregate set",
}  # fmt: skip

WITHOUT = {
    "audit heal": "without --yes it only shows what it would repair",
    "instance adopt": "without --yes it only shows what it would adopt",
    "policy replay": "it changes nothing",
}


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, Any]]:
    return {each["command"]: each for each in command_table.as_json(app)}


def test_a_command_that_deletes_closes_or_moves_has_a_dry_run(table: dict[str, dict[str, Any]]) -> None:
    acts = {name for name in table if _verb(name) in VERBS or name in SETS} - WITHOUT.keys()
    assert {name for name in acts if "--dry-run" not in table[name]["options"]} == set()


def _verb(name: str) -> str:
    words = name.split()
    return "import" if "import" in words else words[-1]


def test_each_exception_is_a_command_without_the_option(table: dict[str, dict[str, Any]]) -> None:
    unknown = {name for name in (*WITHOUT, *SETS) if name not in table}
    assert {name for name in unknown if not _is_of_a_missing_feature(name)} == set()
    assert {name for name in WITHOUT.keys() & table if "--dry-run" in table[name]["options"]} == set()


def _is_of_a_missing_feature(name: str) -> bool:
    words = name.split()
    return any(missing_features(" ".join(words[:count])) for count in range(1, len(words) + 1))
