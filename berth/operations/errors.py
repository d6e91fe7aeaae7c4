"""Checks of messages before they are published, and the leaves of grouped errors."""

from collections.abc import Iterator
from typing import TypeVar

from berth.settings import BadSetting
from bus import codec
from bus.errors import TooBig, Undecodable
from bus.vocabulary import Message

M = TypeVar("M", bound=Message)


def checked(message: M) -> M:
    """Return the message as its consumers decode it. Raise BadSetting for an invalid field."""
    try:
        return codec.decode(type(message), codec.encode(message))
    except (Undecodable, TooBig) as problem:
        raise BadSetting(str(problem)) from None


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors of a group, and of the groups in it."""
    for problem in group.exceptions:
        if isinstance(problem, BaseExceptionGroup):
            yield from leaves(problem)
        else:
            yield problem
