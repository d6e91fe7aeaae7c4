"""What cannot be meant, said with the field it stands in; and what somebody probably meant instead."""

from collections.abc import Iterable
from difflib import get_close_matches

_LIKE = 0.65  # of 1: how much a slip resembles what was meant


class Unreadable(ValueError):
    """The request asks for something that means nothing; the text names the field."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A question to put behind "there is no such": empty where nothing resembles it."""
    like = get_close_matches(name, list(known), n=1, cutoff=_LIKE)
    return f"; did you mean {like[0]}?" if like else ""
