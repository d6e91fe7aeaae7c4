"""Queries placement, schedulers and cells in parallel, each with a time limit, and names workers that do not
answer.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bus.aggregates import AggregatesFound, FindAggregates
from bus.cells import CellsFound, FindCells
from bus.clock import monotonic
from bus.errors import AnswerRefused, NoAnswer, Unavailable, Undecodable, Unroutable
from bus.host_health import FindHostHealth, HostHealthFound
from bus.moves import FindMoves, MovesFound
from bus.protocol import Ask
from bus.queries import (
    BuildsFound,
    DecisionFound,
    FindBuilds,
    FindDecision,
    FindInstances,
    FindWaiting,
    InstancesFound,
    WaitingFound,
    WhatIf,
    WhatIfAnswered,
)
from bus.replication import ChangesFound, FindChanges, FindTrees, TreesFound
from bus.resources import FindProviders, ProvidersFound

R = TypeVar("R")

NO_ANSWER = (Unavailable, Unroutable, AnswerRefused, Undecodable)  # what a question may raise


@dataclass(frozen=True, kw_only=True)
class Queries:
    cells: Ask[FindCells, CellsFound]
    providers: Ask[FindProviders, ProvidersFound]
    trees: Ask[FindTrees, TreesFound]
    changes: Ask[FindChanges, ChangesFound]
    aggregates: Ask[FindAggregates, AggregatesFound]
    waiting: Ask[FindWaiting, WaitingFound]
    decision: Ask[FindDecision, DecisionFound]
    what_if: Ask[WhatIf, WhatIfAnswered]
    health: Ask[FindHostHealth, HostHealthFound]
    builds: Ask[FindBuilds, BuildsFound]
    instances: Ask[FindInstances, InstancesFound]
    moves: Ask[FindMoves, MovesFound]


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
        problem = "nobody listens there; it is not running"
    except NO_ANSWER as error:
        problem = str(error)
    return Reply(source, answer, problem, monotonic() - began)
