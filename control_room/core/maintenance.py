"""Parses the form of a maintenance window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_room.core.what_if_form import whole_numbers

_TEXTS = ("hosts", "label", "begin", "end", "per", "reason")
_NUMBERS = {"budget": 0, "most": 4}
FIELDS = (*_TEXTS, *_NUMBERS, "cold", "keep_closed")
_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class WindowForm:
    """A window as entered in a form; the fields have the names of the options of `berth maintenance add`."""

    hosts: Sequence[str]
    label: Sequence[str]
    begin: str
    end: str
    budget: int
    per: str
    most: int
    live: bool
    keep_closed: bool
    reason: str


def parse_window(texts: Mapping[str, str]) -> WindowForm:
    """Return the maintenance window that a form describes. Raise InvalidForm for an invalid number."""
    numbers = whole_numbers(texts, _NUMBERS, _DIGITS)
    return WindowForm(
        hosts=texts["hosts"].replace(",", " ").split(),
        label=texts["label"].replace(",", " ").split(),
        begin=texts["begin"],
        end=texts["end"],
        budget=numbers["budget"],
        per=texts["per"] or "rack",
        most=numbers["most"],
        live=not texts["cold"],
        keep_closed=bool(texts["keep_closed"]),
        reason=texts["reason"],
    )
