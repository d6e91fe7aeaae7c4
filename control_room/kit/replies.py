"""The answers of workers to queries, as pages show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Reply(Generic[R]):
    """The answer of another process to a query, or the reason why there is no answer."""

    source: str  # the queried process, as shown to users
    answer: R | None = None
    problem: str = ""
    seconds: float = 0.0


Replies = Sequence[Reply[Any]]
