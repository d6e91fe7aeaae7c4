"""The part of a feature in a scheduler."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.projects import ClientQuery
from bus.protocol import Intake
from bus.vocabulary import Id
from bus.worker import WorkerRows
from scheduler_worker.core.narrowing import Narrowing
from scheduler_worker.placing.fallback import Fallback


@dataclass(frozen=True, kw_only=True)
class RequestIntake:
    """The sequence in which new build requests are placed. `inbox`: None: as they arrive."""

    inbox: Intake | None = None
    prefetch: int = 0  # messages without acknowledgement that the inbox may have; 0: as without an inbox
    calls: int = 0  # concurrent batches in addition to those of the settings


# Returns, for those of the ids that a cell knows as ids of a feature's objects, such as moves, their builds.
BuildsOf = Callable[[str, Sequence[Id]], Awaitable[Mapping[Id, Id]]]


@dataclass(frozen=True, kw_only=True)
class SchedulerPart:
    """A feature's part of a scheduler."""

    narrowings: tuple[Narrowing, ...] = ()  # called in the order of all parts
    fallbacks: tuple[Fallback, ...] = ()  # asked in the order of all parts
    client_queries: Mapping[str, ClientQuery] = field(default_factory=dict)  # of clients, by name
    builds_of: tuple[BuildsOf, ...] = ()  # find the builds that objects of the feature are about
    intake: RequestIntake | None = None  # at most one feature has one
    rows: WorkerRows = field(default_factory=WorkerRows)  # added to the table of the worker
    offers: tuple[object, ...] = ()  # objects for the parts of features that need this one
