"""The queries that a scheduler sends to placement and to cells."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus import claims, resources
from bus.names import NameEditAnswered, NameEditRequested
from bus.protocol import Ask
from bus.queries import BuildsFound, FindBuilds, FindInstances, InstancesFound
from bus.topics import Query
from bus.vocabulary import Message

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

Claims = Callable[[Sequence[claims.ClaimRequested]], Awaitable[Sequence[claims.ClaimAnswered]]]


class AskOf(Protocol):
    """Returns the function that sends a query of a feature."""

    def __call__(self, query: Query[A, R], /) -> Ask[A, R]: ...


@dataclass(frozen=True, kw_only=True)
class PlacementQueries:
    """The queries that a scheduler sends to placement."""

    claim_many: Claims
    release: Ask[claims.ReleaseRequested, claims.ReleaseAnswered]
    providers: Ask[resources.FindProviders, resources.ProvidersFound]
    allocations: Ask[resources.FindAllocations, resources.AllocationsFound]
    usages: Ask[resources.FindUsages, resources.UsagesFound]
    edit: Ask[resources.EditRequested, resources.EditAnswered]
    edit_name: Ask[NameEditRequested, NameEditAnswered]
    ask: AskOf


@dataclass(frozen=True, kw_only=True)
class CellQueries:
    """The queries that a scheduler sends to cells."""

    builds: Ask[FindBuilds, BuildsFound]
    instances: Ask[FindInstances, InstancesFound]
