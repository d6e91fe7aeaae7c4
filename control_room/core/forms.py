"""Parts of forms: fields, numbers and lists of words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_APART = re.compile(r"[\s,]+")


class InvalidForm(Exception):
    """Error: a form is invalid; each argument names a field and its mistake."""


@dataclass(frozen=True, kw_only=True)
class FormField:
    name: str
    label: str
    number: bool = False
    placeholder: str = ""
    lines: bool = False


def whole_numbers(texts: Mapping[str, str], defaults: Mapping[str, int], digits: int) -> dict[str, int]:
    """Return the number in each field that `defaults` names, or the default if the field is empty. Raise
    InvalidForm if a text is no whole number of at most `digits` digits.
    """
    numbers = dict(defaults)
    for name in defaults:
        if text := texts[name]:
            if not (text.isascii() and text.isdecimal() and len(text) <= digits):
                raise InvalidForm(f"{name}: {text[:40]!r} is no whole number")
            numbers[name] = int(text)
    return numbers


def words(text: str) -> list[str]:
    return [item for item in _APART.split(text) if item]
