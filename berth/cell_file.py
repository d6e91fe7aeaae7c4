"""Reads and writes the settings file of one cell's workers, which contains only that cell's secrets."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from berth.kit.secret_files import write_secret
from berth.settings import BadSetting, Settings
from bus.broker_urls import first_url

_HEAD = """\
# Secrets of a conductor or an agent of cell {cell}, by `berth cell create` or `add-agent`: keep it secret.
# Other settings of that worker may be added here.
"""


@dataclass(frozen=True)
class CellFile:
    """The secrets in a cell's settings file: the URLs of its broker and its database, with passwords."""

    broker: str  # the URL by which its workers reach RabbitMQ
    database: str = ""  # the URL of its conductor's database; empty: a file in the conductor's state_dir


def read_cell_file(path: Path, cell: str) -> CellFile | None:
    """Return the secrets in a cell's settings file, or None if no file exists. Raise BadSetting for invalid
    TOML, or if the file's setting `cells` lists anything but this cell."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadSetting(f"{path}: not TOML: {problem}") from None
    if values.get("cells") != [cell]:
        raise BadSetting(f"{path}: is not the file of cell {cell} alone (cells = {values.get('cells')})")
    return CellFile(str(values.get("amqp_url", "")), str(values.get("database_url", "")))


def write_cell_file(path: Path, cell: str, settings: Settings, has: CellFile) -> bool:
    """Write a cell's secrets, `has`, to its settings file, and return whether the file changed. Other lines
    of an existing file stay; a new file also gets the settings `exchange` and `agent_queues`.
    """
    secrets = {"amqp_url": has.broker} | ({"database_url": has.database} if has.database else {})
    try:
        after = before = path.read_text(encoding="utf-8")
        for name, value in secrets.items():
            after = _with(after, name, value)
    except FileNotFoundError:
        before = ""
        values = {"cells": [cell], "exchange": settings.bus.exchange, **secrets}
        if settings.cells.agent_queues != "own":
            values["agent_queues"] = settings.cells.agent_queues
        after = _HEAD.format(cell=cell) + "".join(_line(name, value) for name, value in values.items())
    if after != before:
        write_secret(path, after)
    path.chmod(0o600)
    return after != before


def password_of(url: str, user: str) -> str:
    """Return the password in a URL, or "" if the user in the URL is not `user`."""
    parts = urlsplit(first_url(url))
    return unquote(parts.password or "") if unquote(parts.username or "") == user else ""


def _with(text: str, name: str, value: Any) -> str:
    """Return a settings file's text with the value of one setting replaced, or the setting added."""
    assignment = re.compile(rf"^{name}\s*=.*$", re.MULTILINE)
    if assignment.search(text):
        return assignment.sub(lambda _: _line(name, value).rstrip(), text, count=1)
    return _line(name, value) + text


def _line(name: str, value: Any) -> str:
    return f"{name} = {json.dumps(value)}\n"  # a text or a list of texts is the same in TOML
