"""Writes files with secrets, and puts users and passwords into URLs."""

import os
import re
from pathlib import Path
from urllib.parse import quote

_AUTHORITY_PATH_QUERY = re.compile(r"([^/?#]*)([^?#]*)(.*)", re.DOTALL)


def write_secret(path: Path, text: str) -> None:
    """Write a text file atomically and with mode 0600, so that other users can never read it."""
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(made, path)


def as_user(url: str, user: str, password: str, path: str | None = None) -> str:
    """Return the URL with the given user and password and, unless `path` is None, with this path."""
    scheme, _, rest = url.partition("://")
    authority, old_path, query = _AUTHORITY_PATH_QUERY.findall(rest)[0]
    known = f"{quote(user, safe='')}:{quote(password, safe='')}@{authority.rpartition('@')[2]}"
    return f"{scheme}://{known}{old_path if path is None else path}{query}"
