"""Splitting of lists that are too long for one message or one transaction."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portions(items: Iterable[T], most: int) -> Iterator[tuple[T, ...]]:
    """Return the items in tuples of at most this length."""
    listed = tuple(items)
    return (listed[at : at + most] for at in range(0, len(listed), most))
