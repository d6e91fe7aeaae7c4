"""Describes every setting and every option of the simulator, for documents, commands and settings files."""

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from berth.reference_tables import markdown_table
from berth.settings import (
    GROUP_OF,
    KINDS,
    PREFIX,
    SIMULATOR,
    FeatureSettings,
    Settings,
    group_name,
    settings_by_name,
)
from bus.feature import SettingsGroup

_OF_SIMULATOR = (
    "TOML file with the options of the simulator (docs/reference/simulator.md), or in berth.toml a table of "
    "them; a single option is simulator.NAME after --set and BERTH_SIMULATOR_NAME in the environment"
)
_TYPES = {str: "text", int: "whole number", float: "number", bool: "yes or no", tuple[str, ...]: "list"}


@dataclass(frozen=True)
class Setting:
    """A setting as the documentation lists it."""

    name: str
    group: str  # a sentence about the group
    kind: str
    default: Any
    says: str


def settings_there_are() -> list[Setting]:
    """Return all settings; the options of the simulator are one setting."""
    every = [setting for setting in _every_setting() if not setting.name.startswith(PREFIX)]
    group = _titles()["simulator"]
    return [*every, Setting(SIMULATOR, group, "file or table", "", _OF_SIMULATOR)]


def simulator_options() -> list[Setting]:
    """Return the settings of the simulator, which are options of the file for simulated agents."""
    return [
        replace(setting, name=setting.name.removeprefix(PREFIX))
        for setting in _every_setting()
        if setting.name.startswith(PREFIX)
    ]


def _every_setting() -> list[Setting]:
    sentences, titles = _words(), _titles()
    defaults = settings_by_name(Settings())
    return [
        Setting(
            name, titles[group], _TYPES.get(KINDS[name], "table"), defaults[name], sentences.get(name, "")
        )
        for name, group in GROUP_OF.items()
    ]


def settings_markdown() -> str:
    parts = list[str]()
    for group, settings in groupby(settings_there_are(), lambda setting: setting.group):
        parts += [f"### {group.rstrip('.')}\n", _table_of_settings("setting", settings)]
    return "\n".join(parts)


def simulator_markdown() -> str:
    return _table_of_settings("option", simulator_options())


def _table_of_settings(title: str, settings: Iterable[Setting]) -> str:
    rows = [
        (
            f"`{setting.name}`",
            setting.kind,
            "" if setting.default in ("", (), {}) else f"`{json.dumps(setting.default)}`",
            setting.says,
        )
        for setting in settings
    ]
    return markdown_table((title, "type", "default", "meaning"), rows)


def _groups(kind: type[SettingsGroup], *path: str) -> Iterator[tuple[str, type[SettingsGroup]]]:
    """Yield the name and the class of each group of settings inside a group, at any depth."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, SettingsGroup):
            yield group_name((*path, field.name)), field.type
            yield from _groups(field.type, *path, field.name)


def _titles() -> Mapping[str, str]:
    """Return, for each group of settings, the first paragraph of its docstring."""
    found = {path: inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0] for path, kind in _groups(Settings)}
    return {path: re.sub(r" ?\([\w/]+\.md\)", "", title) for path, title in found.items()}


def _words() -> Mapping[str, str]:
    """Return, for each setting, the comment that describes it in its group."""
    found = dict[str, str]()
    for _, kind in _groups(Settings):
        if kind is FeatureSettings:  # it is made at run time, and has only groups
            continue
        source = inspect.getsource(kind)
        notes = {
            token.start[0]: (token.string.lstrip("# "), token.line.strip().startswith("#"))
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        outside = {info.name: info.encode_name for info in msgspec.structs.fields(kind)}
        fields = {
            outside[field.target.id]: field
            for field in ast.walk(ast.parse(source))
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for name in fields.keys() & KINDS.keys():
            field = fields[name]
            first = field.lineno
            while notes.get(first - 1, ("", False))[1]:  # a comment on a separate line
                first -= 1
            lines = range(first, (field.end_lineno or field.lineno) + 1)
            found[name] = " ".join(notes[line][0] for line in lines if line in notes)
    return {name: text.replace("|", "\\|") for name, text in found.items()}
