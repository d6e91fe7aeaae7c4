"""Reads configuration files in the format of oslo.config."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from berth.settings import BadSetting

T = TypeVar("T")


_ASSIGNMENT = re.compile(r"([^=:]*)[=:](.*)")


_TRUE, _FALSE = {"true", "1", "on", "yes"}, {"false", "0", "off", "no"}


class BadConf(ValueError):
    """Error: a configuration file or an option in it cannot be used; the text has no value of an option."""


class OsloConf:
    """The options in a configuration file in the format of oslo.config; an empty path has no options."""

    def __init__(self, path: str) -> None:
        self._values: dict[tuple[str, str], list[str]] = {}
        if not path:
            return
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise BadConf(f"cannot be read: {getattr(problem, 'strerror', None) or 'not text'}") from None
        self._parse(text)

    def _parse(self, text: str) -> None:
        group, last = "", list[str]()
        for number, line in enumerate(text.splitlines(), start=1):
            if line[:1] in (" ", "\t") and line.strip():
                if not last:
                    raise BadConf(f"line {number} continues no option")
                last[-1] += f"\n{line.strip()}"
                continue
            last = []
            if not line.strip() or line[0] in "#;":
                continue
            if line[0] == "[":
                group = line.strip().strip("[]")
            elif (found := _ASSIGNMENT.fullmatch(line)) and found[1].strip():
                last = self._values.setdefault((group, found[1].strip()), [])
                last.append(_unquoted(found[2].strip()))
            else:
                raise BadConf(f"line {number} is neither [GROUP] nor OPTION = VALUE")

    def every(self, group: str, name: str) -> list[str]:
        """Return the values of an option that may have several lines."""
        found = self._values.get((group, name), [])
        if any("$" in value for value in found):
            raise BadConf(f"[{group}] {name}: berth does not resolve references to other options ($)")
        return found

    def text(self, group: str, name: str, default: str) -> str:
        """Return the last value of an option, or the default if the file does not set it."""
        found = self.every(group, name)
        return found[-1] if found else default

    def words(self, group: str, name: str, default: str) -> tuple[str, ...]:
        """Return the comma-separated words of an option; raise BadConf if there is none."""
        found = tuple(word.strip() for word in self.text(group, name, default).split(",") if word.strip())
        if not found:
            raise BadConf(f"[{group}] {name}: must not be empty")
        return found

    def number(self, group: str, name: str, default: int) -> int:
        """Return the value of an option; raise BadConf if it is no whole number of at least 1."""
        text = self.text(group, name, str(default))
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise BadConf(f"[{group}] {name}: takes a whole number of at least 1")
        return int(text)

    def real(self, group: str, name: str, default: float) -> float:
        """Return the value of an option that is a finite number; raise BadConf if it is none."""
        try:
            value = float(self.text(group, name, str(default)))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadConf(f"[{group}] {name}: takes a number")
        return value

    def flag(self, group: str, name: str) -> bool:
        """Return whether an option is on; it is off by default."""
        text = self.text(group, name, "false").lower()
        if text not in _TRUE | _FALSE:
            raise BadConf(f"[{group}] {name}: takes true or false")
        return text in _TRUE

    def one_of(self, group: str, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return the value of an option; raise BadConf if it is not one of the choices."""
        text = self.text(group, name, default)
        if text not in choices:
            raise BadConf(f"[{group}] {name}: is {', '.join(choices[:-1])} or {choices[-1]}")
        return text


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def read_conf(setting: str, path: str, read: Callable[[str], T]) -> T:
    """Return what `read` reads in the file that a setting names; raise BadSetting if the file is wrong."""
    try:
        return read(path)
    except BadConf as problem:
        raise BadSetting(f"{setting} = {path!r}: {problem}") from None
