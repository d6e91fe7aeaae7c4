"""Errors of a request that contradicts itself, and the closest known name to a wrong one."""

from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nlargest
from itertools import takewhile

MAX_NOTES = 20  # sentences about one list of a request
_LONGEST = 2000  # characters of a sentence: a value that is quoted may be large
_LIKE = 0.65  # of 1: how much a slip resembles what was meant
_COMPARED = 200  # names: comparing one takes up to 50 microseconds


class Unreadable(ValueError):
    """The request asks for something that means nothing; the text names the field."""

    def __init__(self, why: str) -> None:
        super().__init__(why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion such as "did you mean …?", or an empty string if no known name is similar."""

    def alike(other: str) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False)))

    like = get_close_matches(name, nlargest(_COMPARED, known, key=alike), n=1, cutoff=_LIKE)
    return f"; did you mean {like[0]}?" if like else ""
