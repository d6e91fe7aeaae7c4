"""Sends the queries of pages, with a time limit."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, NoAnswer, Undecodable, Unroutable
from control_room.kit.replies import Reply

R = TypeVar("R")


QUERY_SECONDS = 3.0  # time limit of usual queries


LONG_QUERY_SECONDS = 20.0  # time limit of queries that take computation


NO_ANSWER = (*UNANSWERED, Undecodable)  # what a query may raise


class Queries:
    """The control room's queries to workers, each with a time limit.

    A failed query raises one of the errors in NO_ANSWER.
    """

    def __init__(self, bus: Bus) -> None:
        self.cells = bus.asker(topics.CELLS, QUERY_SECONDS)
        self.providers = bus.asker(topics.PROVIDERS, LONG_QUERY_SECONDS)
        self.trees = bus.asker(topics.TREES, LONG_QUERY_SECONDS)
        self.changes = bus.asker(topics.CHANGES, LONG_QUERY_SECONDS)
        self.aggregates = bus.asker(topics.AGGREGATES, LONG_QUERY_SECONDS)
        self.waiting = bus.asker(topics.WAITING, QUERY_SECONDS)
        self.decision = bus.asker(topics.DECISION, QUERY_SECONDS)
        self.health = bus.asker(topics.HOST_HEALTH, QUERY_SECONDS)
        self.builds = bus.asker(topics.FIND_BUILDS, QUERY_SECONDS)
        self.instances = bus.asker(topics.FIND_INSTANCES, QUERY_SECONDS)
        self.acts = bus.asker(topics.FIND_ACTS, QUERY_SECONDS)
        self.bus = bus  # for operations of features
        self.asker = partial(bus.asker, timeout=LONG_QUERY_SECONDS)  # for the queries of features


async def query(source: str, ask: Callable[[Any], Awaitable[R]], question: Any) -> Reply[R]:
    """Send a query. If no answer arrives, the reply has the reason, so that the page can show its other
    parts.
    """
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
