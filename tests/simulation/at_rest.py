"""Checks of an idle cloud: nothing lost, nothing left over, all records agree."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cell_conductor.core.build import Build
from tests.simulation.broken import Broken
from tests.simulation.guest_checks import GuestSeen, rooms_of
from tests.simulation.invariants import BUILDS, HELD, KEPT, check_always, refuse_any

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld


def check_at_rest(world: "SimulatedWorld") -> None:
    """When every build and every move has ended and nothing is under way."""
    check_always(world)
    if world.broker.dead:
        raise Broken(f"dead letters: {[letter.reason for letter in world.broker.dead.values()]}")
    if rescued := sum(one.store.rescued for one in world.waiting.values()):
        raise Broken(f"{rescued} were rescued by the sweep: no change had told of their hosts")
    placement = _at_rest(world, "placement")
    held = dict(placement.execute(HELD).fetchall())
    living = {build for build, (status, _) in world.ends.items() if status == "active"} - world.deleted
    stands: dict[str, tuple[str, str, int]] = {}
    for cell in world.cells:
        for id_, status, root, attempt in _at_rest(world, f"cell_{cell}").execute(BUILDS):
            if status not in ("active", "shelved", "error", "deleted"):
                raise Broken(f"{id_} is still {status} in cell {cell}")
            stands[id_] = status, root, attempt
    shelved = {build for build in living if stands[build][0] == "shelved"}
    should_hold = living - shelved
    if set(held) != should_hold:
        raise Broken(f"held without an owner: {set(held) - should_hold}; lost: {should_hold - set(held)}")
    refuse_any(placement.execute(KEPT), "kept for guests that are gone")
    guests = defaultdict[str, list[GuestSeen]](list)
    for guest in world.guests():
        if guest.build not in should_hold:
            raise Broken(f"a guest of {guest.build}, of attempt {guest.attempt}, was left on {guest.root}")
        guests[guest.build].append(guest)
    for build, there in guests.items():
        _, root, attempt = stands[build]
        if len(there) > 1 or there[0].root != root:
            raise Broken(f"{build} is on {root} by its cell, and its guests are {there}")
        if (there[0].attempt != attempt or not there[0].runs) and build not in world.movers.ended_badly:
            raise Broken(f"{build} runs as attempt {attempt} by its cell, and its guest is {there[0]}")
    if not world.forgetful and (lost := should_hold - set(guests) - world.movers.ended_badly):
        raise Broken(f"active, and nowhere: {lost}")


def check_builds(world: "SimulatedWorld", builds: Mapping[str, Build]) -> None:
    placement = _at_rest(world, "placement")
    holdings = rooms_of(placement)
    generations = dict(placement.execute("SELECT uuid, generation FROM consumers").fetchall())
    guests = {guest.build: guest for guest in world.guests()}
    for id_, build in builds.items():
        if build.status != "active" or id_ in world.deleted:
            continue
        held = holdings.get((id_, build.host.root), {})
        asked = {"VCPU": build.spec.flavor.vcpus, "MEMORY_MB": build.spec.flavor.memory_mb}
        for name, amount in asked.items() if build.spec.flavor.name != "metal" else ():
            if (has := sum(mapping.get(name, 0) for mapping in held.values())) != amount:
                raise Broken(f"{id_} is of {amount} {name} by its cell, and holds {has}")
        if build.generation != generations[id_]:
            raise Broken(f"{id_} has another generation by its cell than {generations[id_]}: {build}")
        if held != (known := build.host.choice.allocations):
            raise Broken(f"{id_} holds {held}, and by its cell {known}")
        guest = guests.get(id_)
        if guest is not None and guest.allocations not in ({}, held) and id_ not in world.movers.ended_badly:
            raise Broken(f"{id_} holds {held}, and its guest has {guest.allocations}")
        if build.leftovers:
            raise Broken(f"{id_} has left {build.leftovers}, for which nothing is kept")


def _at_rest(world: "SimulatedWorld", store: str) -> sqlite3.Connection:
    connection = world.committed(store)
    if connection is None:
        raise Broken("at rest, and yet a transaction is open")
    return connection
