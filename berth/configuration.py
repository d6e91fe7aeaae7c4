"""Reads settings from berth.toml, BERTH_ variables, --config, --set and options; the last one wins."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from berth.settings import (
    GROUP_OF,
    KINDS,
    PREFIX,
    SIMULATOR,
    BadSetting,
    Settings,
    described,
    settings_by_name,
)
from berth.settings_checks import check
from bus.masking import masked

ENV_PREFIX = "BERTH_"


EFFECTIVE_ENV = "BERTH_EFFECTIVE_SETTINGS"  # passes a supervisor's settings to its workers


SUPERVISED_ENV = "BERTH_SUPERVISED"  # informs a worker that its standard input closes with its supervisor


DEFAULT_FILE = Path("berth.toml")


_OTHER_VARIABLES = ("BERTH_CONFIG", EFFECTIVE_ENV, SUPERVISED_ENV)


_NAMED = re.compile(r"\s*[\w-]+\s*=")


# the setting of each key of a table [cells.NAME]
_OF_A_CELL = {"broker": "cell_amqp_urls", "database": "cell_database_urls", "ferry": "cell_ferry_urls"}


@dataclass(frozen=True)
class Effective:
    """The settings in force, the source of each (a file, an option), and unknown BERTH_ variables."""

    settings: Settings
    origins: dict[str, str] = field(default_factory=dict)
    file: Path | None = None  # the TOML file that was read
    ignored: tuple[str, ...] = ()  # BERTH_ variables that are no setting: misspelled, or of another program

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return each setting's value without passwords, its source and its group."""
        values = settings_by_name(self.settings)
        return {
            name: {"value": masked(values[name]), "from": self.origins.get(name, "default"), "group": group}
            for name, group in GROUP_OF.items()
        }


def read(
    flags: Mapping[str, Any] | None = None,
    *,
    sets: Mapping[str, str] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Effective:
    """Read settings from berth.toml (or the file that BERTH_CONFIG names), the environment, the file of
    --config (`file`, instead of berth.toml), --set (`sets`) and options (`flags`); the last source with a
    value wins. A supervised process uses only its supervisor's settings.
    """
    environment = os.environ if environment is None else environment
    if environment.get(EFFECTIVE_ENV):
        return _inherited(environment[EFFECTIVE_ENV])
    named = file or (Path(environment["BERTH_CONFIG"]) if environment.get("BERTH_CONFIG") else None)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(name: str, value: Any, origin: str) -> None:
        if name == SIMULATOR:
            options, origin = _of_simulator(value, origin)
            for option, given in options.items():
                take(f"{PREFIX}{option}", given, origin)
            return
        if name not in KINDS:
            raise BadSetting(f"{origin}: there is no setting {masked(name)!r}; {_suggestion(name)}")
        values[name], origins[name] = _converted(name, value, origin), origin

    in_file, path = _from_file(named), str(named or DEFAULT_FILE)
    tables = _spread_tables_of_cells(in_file, path)
    of_file = [(name, value, path) for name, value in in_file.items()]
    of_environment = _from_environment(environment)
    # An option of the command, also --config, outranks the environment, which outranks all other files.
    for source in (of_environment, of_file) if file else (of_file, of_environment):
        for name, value, origin in source:
            take(name, value, origin)
    for name, value in (sets or {}).items():
        take(name, value, f"--set {masked(name)}")
    for name, value in (flags or {}).items():
        if value is not None:
            take(name, value, f"--{name.removeprefix(PREFIX).replace('_', '-')}")
    for name in _OF_A_CELL.values():
        if origins.get(name) == path:  # a table of a cell that is not selected is ignored
            left_out = tables.difference(values["cells"])
            values[name] = {cell: url for cell, url in values[name].items() if cell not in left_out}
    settings = Settings().having(**values)
    check(settings, values, origins)
    used = Path(path).absolute() if in_file else None
    return Effective(settings, origins, used, tuple(sorted(_unknown(environment))))


def _inherited(given: str) -> Effective:
    """Decode the complete and checked settings that a supervisor passes to its workers."""
    try:
        settings = msgspec.json.decode(given, type=Settings)
    except msgspec.DecodeError as problem:
        raise BadSetting(f"{EFFECTIVE_ENV}: is for the supervisor of `berth up` to set: {problem}") from None
    return Effective(settings, dict.fromkeys(KINDS, "supervisor"))


def _unknown(environment: Mapping[str, str]) -> set[str]:
    known = {_variable(name) for name in (SIMULATOR, *KINDS)}
    known |= {f"{key}_FILE" for key in known} | set(_OTHER_VARIABLES)
    return {key for key in environment if key.startswith(ENV_PREFIX) and key not in known}


def _variable(name: str) -> str:
    """Return the environment variable of a setting, as BERTH_SIMULATOR_HOSTS of `simulator.hosts`."""
    return ENV_PREFIX + name.upper().replace(".", "_")


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the settings in variables BERTH_NAME=value or BERTH_NAME_FILE=path; ignore empty variables."""
    found = []
    for name in (SIMULATOR, *KINDS):
        key = _variable(name)
        if environment.get(key):
            found.append((name, environment[key], key))
        elif path := environment.get(key + "_FILE"):
            if name == SIMULATOR:  # its value is the name of a file already
                found.append((name, path, f"{key}_FILE"))
                continue
            try:
                found.append((name, Path(path).read_text().strip(), f"{key}_FILE"))
            except (OSError, UnicodeDecodeError) as problem:
                why = getattr(problem, "strerror", None) or "not text"
                raise BadSetting(f"{key}_FILE: cannot read {path}: {why}") from None
    return found


def _from_file(named: Path | None) -> dict[str, Any]:
    path = named or DEFAULT_FILE
    if named is None and not path.exists():
        return {}
    _refuse_file_of_others(path, is_named=named is not None)
    return _toml(path, "; `berth init` writes one")


def _refuse_file_of_others(path: Path, *, is_named: bool) -> None:
    """Raise BadSetting if other users can write to a settings file. A file that `is_named` may be of another
    user; a berth.toml that is only found in the working directory may be of root or of this user.
    """
    try:
        found = path.stat()
    except OSError:
        return  # reading the file reports why it cannot be read
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getgid())
    if stat.S_ISREG(found.st_mode) and (found.st_mode & stat.S_IWOTH or by_group):
        raise BadSetting(f"{path.absolute()}: not used, because other users can write to it: chmod go-w")
    if not is_named and found.st_uid not in (0, os.getuid()):
        raise BadSetting(f"{path.absolute()}: not used, because it belongs to another user; --config uses it")


def _toml(path: Path, hint_if_missing: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        hint = hint_if_missing if isinstance(problem, FileNotFoundError) else ""
        raise BadSetting(f"{path}: cannot be read: {problem.strerror}{hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadSetting(f"{path}: not TOML: {problem}") from None


def _of_simulator(value: Any, origin: str) -> tuple[dict[str, Any], str]:
    """Return the simulator's options, in a table or in the TOML file that `value` names, and their origin."""
    if isinstance(value, dict):
        return value, origin
    if not isinstance(value, str):
        raise BadSetting(f"{origin}: {SIMULATOR} takes a TOML file or a table, not {described(value)}")
    try:
        return (_toml(Path(value)) if value else {}), value
    except BadSetting as problem:
        hint = f"; a single option is {PREFIX}NAME=VALUE" if "=" in value else ""
        raise BadSetting(f"{origin}: {SIMULATOR} = {masked(value)!r}: {masked(str(problem))}{hint}") from None


def _suggestion(name: str) -> str:
    """Return the setting that is most similar to an unknown name, or the names that exist."""
    found = {**{known.removeprefix(PREFIX): known for known in KINDS}, **{known: known for known in KINDS}}
    if like := get_close_matches(name, found, n=1, cutoff=0.8):
        return f"did you mean {found[like[0]]}?"
    if name.startswith(PREFIX):
        return f"there are: {', '.join(known for known in KINDS if known.startswith(PREFIX))}"
    known = [*(known for known in KINDS if not known.startswith(PREFIX)), SIMULATOR]
    return f"there are: {', '.join(known)}"


def _spread_tables_of_cells(values: dict[str, Any], path: str) -> set[str]:
    """Convert the tables [cells.NAME] of the TOML file at `path`, read into `values`, to settings with a
    value for each cell, such as `cell_amqp_urls`; return the names of the cells with a table.
    """
    tables = values.get("cells")
    if not isinstance(tables, dict):
        return set()
    values["cells"] = list(tables)
    for cell, table in tables.items():
        strange = sorted(set(table) - set(_OF_A_CELL)) if isinstance(table, dict) else [masked(table)]
        if strange:
            known = ", ".join(_OF_A_CELL)
            raise BadSetting(
                f"{path}: cells.{cell}: there is no {strange[0]!r} of a cell; there are: {known}"
            )
    for key, name in _OF_A_CELL.items():
        if by_cell := {cell: table[key] for cell, table in tables.items() if key in table}:
            values[name] = {**values.get(name, {}), **by_cell}
    return set(tables)


_SAID: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "names, comma separated",
    dict[str, float]: "name=number, comma separated",
    dict[str, str]: "name=value, comma separated",
    dict[str, dict[str, Any]]: "name.option=value, comma separated, or JSON",
}


_CELL_DIGITS = 3  # of a number of cells


def _converted(name: str, value: Any, origin: str) -> Any:
    kind = KINDS[name]
    also = ", or how many there are" if name == "cells" else ""
    bad = BadSetting(f"{origin}: {name} takes {_SAID[kind]}{also}, not {described(value)}")
    if name == "cells":
        value = _counted_cells(value)
    if isinstance(value, str) and kind is not str:
        if kind == tuple[str, ...]:
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif kind == dict[str, dict[str, Any]]:
            value = _tables(value, bad)
        elif kind in (dict[str, float], dict[str, str]):
            pairs = [part.partition("=") for part in _parts(value)]
            if not all(equals for _, equals, _ in pairs):
                raise bad
            value = {key.strip(): item.strip() for key, _, item in pairs}
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise bad from None


def _counted_cells(given: Any) -> Any:
    """Return the names c1, c2, ... if a number of cells is given; else what is given."""
    number = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    if not (number.isascii() and number.isdigit() and len(number) <= _CELL_DIGITS):
        return given
    return [f"c{position}" for position in range(1, int(number) + 1)]


def _parts(text: str) -> list[str]:
    """Return the comma separated parts of a text `name=value, name=value`. A part without a name continues
    the URL before it: URLs may list several addresses."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and "://" in parts[-1] and not _NAMED.match(part):
            parts[-1] += f",{part}"
        elif part.strip():
            parts.append(part)
    return parts


def _tables(text: str, bad: BadSetting) -> Any:
    """Return filter and weigher options, parsed from `io_ops.max_io_ops_per_host=4, ...` or a JSON object;
    raise `bad` for an invalid text.
    """
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            raise bad from None
    tables: dict[str, dict[str, str]] = {}
    for part in text.split(","):
        path, equals, value = part.partition("=")
        table, dot, option = path.strip().rpartition(".")
        if part.strip() and not (equals and dot and table and option):
            raise bad
        if part.strip():
            tables.setdefault(table, {})[option] = value.strip()
    return tables
