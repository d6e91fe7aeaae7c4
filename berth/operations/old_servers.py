"""Instances as the system they come from lists them: what placement does not know of them, from a file."""

import csv
import io
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berth.settings import BadSetting

# As `openstack server list --long` and Nova's database call them, too; without regard to case, - and spaces.
_CALLED = {
    "uuid": ("uuid", "id", "instance_uuid", "server_id"),
    "name": ("name", "display_name"),
    "host": ("host", "os_ext_srv_attr:host", "hypervisor_hostname", "os_ext_srv_attr:hypervisor_hostname"),
    "flavor": ("flavor", "flavor_name", "instance_type"),
    "project": ("project", "project_id", "tenant_id"),
    "user": ("user", "user_id"),
}
_FIGURES = {"vcpus": ("vcpus",), "memory_mb": ("memory_mb", "ram")}


@dataclass(frozen=True)
class OldServer:
    """A server from the file; missing fields are empty."""

    name: str = ""
    host: str = ""
    flavor: str = ""
    project: str = ""
    user: str = ""
    figures: Mapping[str, int] = field(default_factory=dict)
    extra_specs: Mapping[str, str] = field(default_factory=dict)


def old_servers(path: Path) -> dict[str, OldServer]:
    """Read servers by their uuids from JSON (a list, or an object a line), YAML, or CSV with a line of
    names.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise BadSetting(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path}: is not text") from None
    found: dict[str, OldServer] = {}
    for position, row in enumerate(_rows(path, text), start=1):
        where = f"{path}: entry {position}"
        if not isinstance(row, Mapping):
            raise BadSetting(f"{where}: is no object with names")
        id_, server = _server(where, row)
        if found.setdefault(id_, server) != server:
            raise BadSetting(f"{where}: says of {id_} something else than an entry before")
    return found


def _rows(path: Path, text: str) -> Iterator[Any]:
    try:
        match path.suffix.lower():
            case ".csv":
                yield from csv.DictReader(io.StringIO(text))
            case ".yaml" | ".yml":
                from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

                try:
                    said = safe_load(text)
                except (YAMLError, RecursionError) as problem:
                    raise BadSetting(f"{path}: is no YAML: {problem}") from None
                yield from said if isinstance(said, list) else [said]
            case _ if text.lstrip().startswith("["):
                yield from json.loads(text)
            case _:
                yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except (json.JSONDecodeError, RecursionError) as problem:
        raise BadSetting(f"{path}: is no JSON: {problem}") from None


def _server(where: str, row: Mapping[str, Any]) -> tuple[str, OldServer]:
    said = {_plain(str(name)): value for name, value in row.items()}
    words = {name: _word(where, name, _first(said, called)) for name, called in _CALLED.items()}
    try:
        id_ = str(uuid.UUID(words.pop("uuid")))
    except ValueError:
        raise BadSetting(f"{where}: uuid: is missing, or is none") from None
    flavor: Mapping[str, Any] = next(
        (said[name] for name in _CALLED["flavor"] if isinstance(said.get(name), Mapping)), {}
    )
    more = {_plain(str(name)): value for name, value in flavor.items()}
    specs = more.get("extra_specs") or {}
    if not isinstance(specs, Mapping):
        raise BadSetting(f"{where}: flavor.extra_specs: is no object with names")
    figures = {name: _first({**said, **more}, called) for name, called in _FIGURES.items()}
    return id_, OldServer(
        **words,
        figures={
            name: _number(where, name, value) for name, value in figures.items() if value not in ("", None)
        },
        extra_specs={str(name): str(value) for name, value in specs.items()},
    )


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((said[name] for name in names if said.get(name) not in (None, "")), "")


def _word(where: str, name: str, value: Any) -> str:
    if isinstance(value, Mapping):  # a flavor as in Nova's API
        value = value.get("original_name") or value.get("name") or ""
    if not isinstance(value, str | int):
        raise BadSetting(f"{where}: {name}: {value!r} is no word")
    word = str(value).strip()
    if len(word) > (200 if name == "flavor" else 255):
        raise BadSetting(f"{where}: {name}: is too long")
    return word


def _number(where: str, name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadSetting(f"{where}: {name}: {value!r} is no number") from None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
