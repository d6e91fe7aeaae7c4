"""A line of requests alike that wait for room, and what is known of hosts for them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bus.vocabulary import Id
from scheduler_worker.core.reservations import LineKey, Root


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request in its line."""

    request: Id
    kind: str
    priority: int
    since: float
    until: float
    needs: int = 1  # instances that are placed together or not at all

    @property
    def key(self) -> LineKey:
        return (-self.priority, self.since, self.request)


@dataclass(frozen=True, slots=True)
class RoomNeeded:
    """The free capacity that a host must have before a request of the class may fit; without classes:
    unknown.
    """

    resource_class: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class HostsFound:
    """The result of a search of hosts for one kind."""

    fits: Mapping[Root, int]  # and for how many of the kind there is room, at most
    refused: Collection[Root] = ()  # there is room, and a rule refuses them
    passing: bool = False  # does something that passes by itself stand in the way?
    more: bool = False  # it has stopped early


@dataclass(slots=True, eq=False)
class Line:
    """The waiting requests of one kind, and the known hosts for them."""

    kind: str
    watches: Sequence[RoomNeeded]
    waiting: list[tuple[LineKey, Waiter]] = field(default_factory=list)  # in order, without requests on trial
    trying: dict[Id, Waiter] = field(default_factory=dict)
    open: dict[Root, int] = field(default_factory=dict)  # would do, and for how many
    untested: dict[Root, None] = field(default_factory=dict)  # something changed there
    refused: set[Root] = field(default_factory=set)  # only rules stand in the way
    in_vain: set[Root] = field(default_factory=set)  # seemed to do, and did not; nothing changed there since
    swept: bool = False  # nothing but the sweep has found what is open
    more: bool = False  # more hosts would fit: the search stopped at the number of waiting requests
    whole: bool = False  # all hosts are to be evaluated
    look_at: float | None = None  # when to do so again by itself

    @property
    def first(self) -> Waiter:
        """Return the first request, in a trial or not."""
        tried = [(waiter.key, waiter) for waiter in self.trying.values()]
        return min([*tried, *self.waiting[:1]])[1]

    @property
    def further(self) -> bool:
        """Return whether requests behind the first ones are to be examined. Requests on trial search all
        hosts themselves.
        """
        return self.more and not self.open and not self.trying

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and bool(self.whole or self.further or self.untested or self.open)


@dataclass(slots=True, eq=False)
class Trial:
    """Some requests of a line, which are being placed on hosts that would fit."""

    line: Line
    roots: tuple[Root, ...]
    open: set[Id]
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """The next request to be placed, on any host except the excluded ones."""

    waiter: Waiter
    beside: frozenset[Root]
    forgotten: bool = False  # nothing but the sweep has found a host for it
