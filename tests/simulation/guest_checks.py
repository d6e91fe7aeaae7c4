"""Checks of guests after every step: their allocations exist, and no instance runs twice."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from bus.claims import CLEANUP, KEEPERS, MIGRATION, holder_consumer
from tests.simulation.broken import Broken

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

Held = Mapping[str, Mapping[str, int]]  # provider → class → how much
_OTHERS = 12  # attempts before and after
LONGEST_BESIDE = 15.0

_ROOMS = """
SELECT c.uuid, r.uuid, p.uuid, k.name, a.used FROM allocations a JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN resource_classes k ON k.id = a.resource_class_id
"""
_TYPES = "SELECT c.uuid, t.name FROM consumers c JOIN consumer_types t ON t.id = c.consumer_type_id"


class GuestSeen(NamedTuple):
    """A guest that is there, in whole or in part."""

    build: str
    attempt: int
    root: str
    allocations: Held = MappingProxyType({})
    runs: bool = False
    booted: bool = True  # by an order to build it; not by a phase of a move


def check_guests(world: "SimulatedWorld") -> None:
    """Each guest has room that is held, by its build or the keeper of its attempt, and no other guest has."""
    placement = world.committed("placement")
    if placement is None or not (guests := world.guests()):
        return
    holdings = rooms_of(placement)
    types = dict(placement.execute(_TYPES).fetchall())
    whose: dict[str, GuestSeen] = {}  # the room that a consumer holds is one guest's
    for guest in guests:
        holder = _holder(guest, holdings, types)
        if holder is None:
            raise Broken(
                f"{guest.build} may still be on {guest.root}, of attempt {guest.attempt},"
                " and its room is not held"
            )
        other = whose.setdefault(holder, guest)
        if other is not guest:
            raise Broken(
                f"{guest.build} has the room of one guest, and there are two: of attempt {other.attempt} on"
                f" {other.root}, of attempt {guest.attempt} on {guest.root}"
            )
    _never_two(world, guests, types)


def rooms_of(placement: sqlite3.Connection) -> Mapping[tuple[str, str], Held]:
    holdings: defaultdict[tuple[str, str], defaultdict[str, dict[str, int]]]
    holdings = defaultdict(lambda: defaultdict(dict))
    for consumer, root, provider, name, used in placement.execute(_ROOMS):
        holdings[consumer, root][provider][name] = used
    return holdings


def _holder(
    guest: GuestSeen, holdings: Mapping[tuple[str, str], Held], types: Mapping[str, str]
) -> str | None:
    build, attempt = guest.build, guest.attempt
    later = range(attempt + 1, attempt + _OTHERS)
    earlier = range(attempt - 1, max(attempt - _OTHERS, 0), -1)
    others = ((later, KEEPERS), (earlier, (MIGRATION,)))
    names = chain(
        (holder_consumer(build, attempt), build),
        (name for span, of in others for one in span if types.get(name := holder_consumer(build, one)) in of),
    )
    return next((one for one in names if _holds(holdings.get((one, guest.root)), guest.allocations)), None)


def _holds(held: Held | None, asked: Held) -> bool:
    return held is not None and all(
        held.get(provider, {}).get(name, 0) >= amount
        for provider, resources in asked.items()
        for name, amount in resources.items()
    )


def _never_two(world: "SimulatedWorld", guests: list[GuestSeen], types: Mapping[str, str]) -> None:
    running: dict[str, GuestSeen] = {}
    late = []
    for guest in guests:
        if not guest.runs:
            continue
        if guest.booted and types.get(holder_consumer(guest.build, guest.attempt)) == CLEANUP:
            late.append(guest)
            continue
        other = running.setdefault(guest.build, guest)
        if other is not guest:
            raise Broken(_twice(other, guest))
    beside = {(guest.build, guest.attempt): guest for guest in late if guest.build in running}
    now = world.time()
    for key in world.beside.keys() - beside.keys():
        del world.beside[key]
    for key, guest in beside.items():
        if now - world.beside.setdefault(key, now) > LONGEST_BESIDE:
            raise Broken(f"{_twice(running[guest.build], guest)}, for {LONGEST_BESIDE:g} s")


def _twice(one: GuestSeen, other: GuestSeen) -> str:
    return (
        f"{one.build} runs twice: of attempt {one.attempt} on {one.root}, and of attempt"
        f" {other.attempt} on {other.root}"
    )
