"""Queries to placement, schedulers and cells, each with a time limit, whose replies name workers that do not
answer.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, NoAnswer, Unavailable, Undecodable, Unroutable

R = TypeVar("R")

SECONDS = 3.0  # for an answer that a page shows
LONG = 20.0  # for an answer that takes computation
NO_ANSWER = (Unavailable, Unroutable, AnswerRefused, Undecodable)  # what a query may raise


class Queries:
    """The queries of the pages, as functions that raise NO_ANSWER."""

    def __init__(self, bus: Bus) -> None:
        self.cells = bus.asker(topics.CELLS, SECONDS)
        self.providers = bus.asker(topics.PROVIDERS, LONG)
        self.trees = bus.asker(topics.TREES, LONG)
        self.changes = bus.asker(topics.CHANGES, LONG)
        self.aggregates = bus.asker(topics.AGGREGATES, LONG)
        self.waiting = bus.asker(topics.WAITING, SECONDS)
        self.decision = bus.asker(topics.DECISION, SECONDS)
        self.what_if = bus.asker(topics.WHAT_IF, LONG)
        self.health = bus.asker(topics.HOST_HEALTH, SECONDS)
        self.builds = bus.asker(topics.FIND_BUILDS, SECONDS)
        self.instances = bus.asker(topics.FIND_INSTANCES, SECONDS)
        self.moves = bus.asker(topics.FIND_MOVES, SECONDS)


@dataclass(frozen=True, slots=True)
class Reply(Generic[R]):
    """An answer, or the reason for its absence."""

    source: str  # the process that was asked, for people
    answer: R | None = None
    problem: str = ""
    seconds: float = 0.0


async def query(source: str, ask: Callable[[Any], Awaitable[R]], question: Any) -> Reply[R]:
    began = monotonic()
    answer, problem = None, ""
    try:
        answer = await ask(question)
    except NoAnswer:
        problem = "no answer in time"
    except Unroutable:
        problem = "no consumer; it is not running"
    except NO_ANSWER as error:
        problem = str(error)
    return Reply(source, answer, problem, monotonic() - began)
