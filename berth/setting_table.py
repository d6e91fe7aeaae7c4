"""All settings with their meaning, read from the source of berth/settings.py: for docs/settings.md."""

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from berth import settings
from berth.settings import CELLS, GROUP_OF, KINDS, Settings, SettingsGroup, by_name

_OF_CELLS = {
    "cells": "names of all cells; in a TOML file, `[cells.NAME]` is the table of one cell",
    "cell_amqp_urls": "URL of RabbitMQ for a cell's workers, by the cell's name; in a TOML file `broker`",
    "cell_database_urls": "URL of a conductor's database, by its cell's name; in a TOML file `database`",
    "cell_ferry_urls": "URL of a cell's separate RabbitMQ, by the cell's name; in a TOML file `ferry`",
}


@dataclass(frozen=True)
class Setting:
    name: str
    group: str  # a sentence about the group
    kind: str
    default: Any
    says: str


def settings_there_are() -> list[Setting]:
    says, titles = _words(), _titles()
    defaults = by_name(Settings())
    return [
        Setting(name, titles[group], _kind(KINDS[name]), defaults[name], says.get(name, ""))
        for name, group in GROUP_OF.items()
    ]


def markdown() -> str:
    lines: list[str] = []
    group = ""
    for setting in settings_there_are():
        if setting.group != group:
            group = setting.group
            lines += [
                "",
                f"### {group.rstrip('.')}",
                "",
                "| setting | type | default | meaning |",
                "|---|---|---|---|",
            ]
        default = "" if setting.default in ("", (), {}) else f"`{json.dumps(setting.default)}`"
        lines.append(f"| `{setting.name}` | {setting.kind} | {default} | {setting.says} |")
    return "\n".join(lines).strip() + "\n"


def _titles() -> Mapping[str, str]:
    """Return the first sentence of each group's docstring, by the path of the group (as in GROUP_OF)."""
    found = {"cells": "Cells (docs/cells.md)."}

    def below(kind: type[SettingsGroup], path: tuple[str, ...]) -> None:
        for field in msgspec.structs.fields(kind):
            if isinstance(field.type, type) and issubclass(field.type, SettingsGroup):
                here = (*path, field.name)
                found[" ".join(here)] = inspect.cleandoc(field.type.__doc__ or "").split("\n\n")[0]
                below(field.type, here)

    below(Settings, ())
    return {path: re.sub(r" ?\((docs/\w+\.md)\)", "", title) for path, title in found.items()}


def _words() -> Mapping[str, str]:
    """Return the comment in the source for each setting."""
    source = inspect.getsource(settings)
    notes = {
        token.start[0]: (token.string.lstrip("# "), token.line.strip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = dict(_OF_CELLS)
    for group in ast.parse(source).body:
        if not isinstance(group, ast.ClassDef):
            continue
        kind = getattr(settings, group.name)
        if not (isinstance(kind, type) and issubclass(kind, SettingsGroup)):
            continue
        outside = {info.name: info.encode_name for info in msgspec.structs.fields(kind)}
        for field in group.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                name = outside[field.target.id]
                if name in KINDS and name not in CELLS:
                    found[name] = " ".join(_beside(field, notes))
    return found


def _beside(field: ast.AnnAssign, notes: Mapping[int, tuple[str, bool]]) -> Iterator[str]:
    above = field.lineno - 1
    while above in notes and notes[above][1]:  # a comment on a separate line
        above -= 1
    for line in range(above + 1, (field.end_lineno or field.lineno) + 1):
        if line in notes:
            yield notes[line][0].replace("|", "\\|")


def _kind(kind: Any) -> str:
    simple = {str: "text", int: "whole number", float: "number", bool: "yes or no", tuple[str, ...]: "list"}
    return simple.get(kind, "table")
