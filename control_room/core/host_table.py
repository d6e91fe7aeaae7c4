"""The table of hosts: filtered, sorted by one column, and cut into pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.host_health import condition
from control_room.core.hosts import CLASSES, Fleet, natural
from control_room.kit.hosts import KnownHost

ROWS = 100  # hosts on a page
FULL = 0.995  # used share from which on a host that is up is called full
# The states, those that need attention first.
STATES = ("down", "forced down", "unknown", "disabled", "draining", "full", "up")


@dataclass(frozen=True)
class TableQuery:
    """The filters, the order and the page of the table, as the address has them."""

    q: str = ""  # a part of the name
    cell: str = ""
    state: str = ""
    sort: str = "state"  # a column; with a minus the highest first
    page: int = 1

    def having(self, **changed: object) -> dict[str, object]:
        """Return the parameters of an address that differs in some of them."""
        return {"q": self.q, "cell": self.cell, "state": self.state, "sort": self.sort, **changed}


@dataclass(frozen=True)
class HostRow:
    """A host in the table."""

    host: KnownHost
    state: str
    why: str  # why a scheduler does not place there; "" if it does, or if an operator decided it
    used: Sequence[tuple[int, int] | None]  # by class: used and capacity; None: the host has none


@dataclass(frozen=True)
class HostTablePage:
    """A page of the table."""

    rows: Sequence[HostRow]
    classes: Sequence[str]
    count: int  # hosts that pass the filters
    pages: int
    page: int
    states: Mapping[str, int]  # state → hosts, without the filter of the state
    cells: Sequence[str]


def state_of(fleet: Fleet, host: KnownHost) -> str:
    """Return one of STATES. Unlike `berth host list`, hosts that are full or forced down have a state of
    their own.
    """
    health = fleet.health.get(host.root)
    state = condition(host.traits, health)
    if state == "down" and (host.forced_down or (health is not None and health.forced_down)):
        return "forced down"
    return "full" if state == "up" and max(fleet.shares[host.root]) >= FULL else state


def table(fleet: Fleet, asked: TableQuery) -> HostTablePage:
    """Return the page of the table that is asked for; the last one if there are fewer."""
    classes, part = [name for name in CLASSES if name in fleet.classes], asked.q.lower()
    hosts = [
        (state_of(fleet, host), host)
        for host in fleet.in_order()
        if (not part or part in host.name.lower()) and asked.cell in ("", host.cell)
    ]
    states = dict.fromkeys(STATES, 0)
    for state, _ in hosts:
        states[state] += 1
    found = [(state, host) for state, host in hosts if asked.state in ("", state)]
    column = asked.sort.removeprefix("-")
    found.sort(key=_key(fleet, column), reverse=asked.sort.startswith("-"))
    pages = max(-(-len(found) // ROWS), 1)
    page = min(max(asked.page, 1), pages)
    rows = [
        HostRow(host, state, _why(fleet, host), [_amounts(host, name) for name in classes])
        for state, host in found[(page - 1) * ROWS : page * ROWS]
    ]
    cells = sorted({host.cell for host in fleet.hosts.values()})
    return HostTablePage(rows, classes, len(found), pages, page, states, cells)


def _key(fleet: Fleet, column: str) -> Callable[[tuple[str, KnownHost]], Any]:
    """Return the key by which hosts are sorted; hosts with equal keys stay in the order of the map."""
    if column in CLASSES:
        place = CLASSES.index(column)
        return lambda one: fleet.shares[one[1].root][place]
    rank = {state: place for place, state in enumerate(STATES)}
    keys: Mapping[str, Callable[[tuple[str, KnownHost]], Any]] = {
        "name": lambda one: natural(one[1].name),
        "cell": lambda one: one[1].cell,
    }
    return keys.get(column, lambda one: rank[one[0]])


def _amounts(host: KnownHost, resource_class: str) -> tuple[int, int] | None:
    capacity, used = host.amounts(resource_class)
    return (used, capacity) if capacity else None


def _why(fleet: Fleet, host: KnownHost) -> str:
    health = fleet.health.get(host.root)
    if health is None:
        return ""
    return health.why if health.availability == "down" else health.why_disabled
