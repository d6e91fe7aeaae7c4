"""Splits lists that are too long for one message or one transaction."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def portions(items: Iterable[T], most: int) -> Iterator[tuple[T, ...]]:
    """Split items into tuples of at most `most` items."""
    listed = tuple(items)
    return (listed[at : at + most] for at in range(0, len(listed), most))


def portions_by_size(items: Sequence[T], size_of: Callable[[T], int], most: int) -> Iterator[Sequence[T]]:
    """Split items into lists with a total size of at most `most` each; a larger item is alone in its list."""
    begin = size = 0
    for position, item in enumerate(items):
        if size and size + size_of(item) > most:
            yield items[begin:position]
            begin, size = position, 0
        size += size_of(item)
    if begin < len(items):
        yield items[begin:]
