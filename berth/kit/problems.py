"""The extension point of the list of problems: a feature adds its kinds of problems, and finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bus.problems import KnownProblem, ProblemKind
from bus.vocabulary import Message

if TYPE_CHECKING:
    from berth.settings import Settings
    from bus.protocol import Ask
    from bus.topics import Query

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True)
class ProblemReader:
    """The means by which a feature finds its problems: queries with a time limit, the time, and the settings.
    If a worker does not answer a query, the feature lets the error pass: the list then names the worker.
    """

    asker: Callable[[Query[Any, Any]], Ask[Any, Any]]
    now: float
    settings: Settings


async def _none(reader: ProblemReader) -> Iterable[KnownProblem]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ProblemsPart:
    """The kinds of problems of a feature. `find` returns the present ones; it sends the queries `asks`.

    Kinds that only rates of Prometheus show need no `find`.
    """

    kinds: Sequence[ProblemKind]
    find: Callable[[ProblemReader], Awaitable[Iterable[KnownProblem]]] = _none
    asks: Sequence[Query[Any, Any]] = ()
