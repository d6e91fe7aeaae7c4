"""Parses the form of a maintenance window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_room.kit import whole_numbers

_TEXTS = ("hosts", "label", "begin", "end", "duration", "per", "reason")
_NUMBERS = {"budget": 0, "most": 4}
FIELDS = (*_TEXTS, *_NUMBERS, "cold", "keep_closed")
_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """The options of a maintenance window, as an operator enters them; None: the default, or unchanged."""

    hosts: Sequence[str] = ()
    label: Sequence[str] = ()
    begin: str = ""
    end: str = ""
    duration: str = ""
    budget: int | None = None
    per: str | None = None
    most: int | None = None
    live: bool | None = None
    keep_closed: bool | None = None
    reason: str | None = None


def parse_window(texts: Mapping[str, str]) -> WindowOptions:
    """Return the maintenance window that a form describes. Raise InvalidForm for an invalid number."""
    numbers = whole_numbers(texts, _NUMBERS, _DIGITS)
    return WindowOptions(
        hosts=texts["hosts"].replace(",", " ").split(),
        label=texts["label"].replace(",", " ").split(),
        begin=texts["begin"],
        end=texts["end"],
        duration=texts["duration"],
        budget=numbers["budget"],
        per=texts["per"] or "rack",
        most=numbers["most"],
        live=not texts["cold"],
        keep_closed=bool(texts["keep_closed"]),
        reason=texts["reason"],
    )
