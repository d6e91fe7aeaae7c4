"""Parts of forms: fields, numbers and lists of words."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bus.messages import BuildRequested

_APART = re.compile(r"[\s,]+")


class InvalidForm(Exception):
    """Error: a form is invalid; each argument names a field and its mistake."""


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A field of a form. `number`: only digits are accepted. `lines`: a text of several lines."""

    name: str
    label: str
    number: bool = False
    placeholder: str = ""
    lines: bool = False


@dataclass(frozen=True)
class RequestField:
    """A field of the form for build requests, with the name of an option of `berth boot`."""

    field: FormField
    text: Callable[[BuildRequested], str]  # returns the value that a request has
    most: int = 0  # the greatest number


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


def split_words(text: str) -> list[str]:
    """Return the words of a text of a form, separated by spaces or commas."""
    return [item for item in _APART.split(text) if item]


LONGEST_PROJECT = 255  # characters of the id of a project


def is_project(text: str) -> bool:
    """Return whether a text can be the id of a project: databases store no control characters."""
    return 0 < len(text) <= LONGEST_PROJECT and text.isprintable()


@dataclass(frozen=True)
class PageForm:
    """The fields of a form as they were entered, and why the operation was refused."""

    texts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
