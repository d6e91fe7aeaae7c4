"""Checks of a cloud after every step, read from its databases."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from berth.operations import stored_claims as stored
from bus.candidates import PlacedHost
from bus.claims import CLEANUP, HOLDER_TYPES, MIGRATION, holder_consumer
from bus.host_health import DISABLED, FORCED_DOWN
from cell_conductor.core.build import Build
from features.groups.messages import group_of
from features.waiting.hosts import needs_of
from tests.simulation.random_requests import asked_of
from tests.support.rule_builders import recent_builds

if TYPE_CHECKING:
    from features.waiting.placing import WaitingBuilds
    from tests.simulation.world import SimulatedWorld

_USAGE, _CONSUMERS, _NODES = (
    statement.made("sqlite", False).alone for statement in (stored._USAGE, stored._CONSUMERS, stored._NODES)
)
_ON_ITS_HOST = """
NOT EXISTS (SELECT 1 FROM resource_provider_traits m JOIN traits t ON t.id = m.trait_id
 WHERE m.resource_provider_id = p.id AND t.name = 'MISC_SHARES_VIA_AGGREGATE')
"""
_SPREAD = f"""
SELECT c.uuid, count(DISTINCT p.root_provider_id) FROM allocations a
JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.resource_provider_id
WHERE {_ON_ITS_HOST} GROUP BY c.uuid HAVING count(DISTINCT p.root_provider_id) > 1
"""
HELD = f"""
SELECT c.uuid, r.uuid FROM allocations a JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN consumer_types k ON k.id = c.consumer_type_id AND k.name = 'INSTANCE' WHERE {_ON_ITS_HOST}
"""
_HOLDER_NAMES = "('CLEANUP', 'MIGRATION')"
HOLDERS = f"""
SELECT c.uuid, k.name FROM consumers c JOIN consumer_types k ON k.id = c.consumer_type_id
WHERE k.name IN {_HOLDER_NAMES}
"""
_MOVING_AWAY = f"""
SELECT DISTINCT c.uuid, r.uuid FROM allocations a JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN consumer_types k ON k.id = c.consumer_type_id AND k.name = 'MIGRATION' WHERE {_ON_ITS_HOST}
"""
_GROUP_MEMBERS = f"""
FROM server_groups g JOIN consumers c ON c.group_id = g.id JOIN allocations a ON a.consumer_id = c.id
JOIN resource_providers p ON p.id = a.resource_provider_id
LEFT JOIN consumer_types k ON k.id = c.consumer_type_id WHERE {_ON_ITS_HOST}
"""
_ANTI_AFFINITY_BROKEN = f"""
SELECT g.name, p.root_provider_id, count(DISTINCT COALESCE(c.keeps_for, c.uuid)) {_GROUP_MEMBERS}
AND g.policy = 'anti-affinity' GROUP BY g.id, p.root_provider_id
HAVING count(DISTINCT COALESCE(c.keeps_for, c.uuid)) > g.max_per_host
"""
_AFFINITY_BROKEN = f"""
SELECT g.id, g.name, count(DISTINCT p.root_provider_id) {_GROUP_MEMBERS}
AND g.policy = 'affinity' AND k.name NOT IN {_HOLDER_NAMES}
GROUP BY g.id HAVING count(DISTINCT p.root_provider_id) > 1
"""
_MEMBERS_OF = "SELECT uuid FROM consumers WHERE group_id = ?"
_MEMBERS = f"""
SELECT g.uuid, (SELECT r.uuid FROM resource_providers r WHERE r.id = p.root_provider_id), k.name,
count(DISTINCT c.id) {_GROUP_MEMBERS} GROUP BY g.id, p.root_provider_id, k.name
"""
_FREE = """
SELECT r.uuid, p.uuid, c.name, CAST((i.total - i.reserved) * i.allocation_ratio AS INTEGER) - i.used
FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN resource_classes c ON c.id = i.resource_class_id
"""
_LAST_CHANGE = "SELECT COALESCE(max(number), 0) FROM change_log"
BUILDS = "SELECT id, status, root, attempt FROM builds JOIN placed_builds ON build = id"


def check_always(world: "SimulatedWorld") -> None:
    """Check what must always hold, after each acknowledged message, if no transaction is open."""
    placement = world.committed("placement")
    if placement is None:
        return
    refuse_any(
        placement.execute(_USAGE), "usage differs from the sum of the allocations, or exceeds the capacity"
    )
    refuse_any(placement.execute(_NODES), "a node with two holders")
    refuse_any(placement.execute(_SPREAD), "held on two hosts at once")
    refuse_any(placement.execute(_ANTI_AFFINITY_BROKEN), "too many members of a server group on a host")
    _check_affinity(world, placement)
    refuse_any(placement.execute(_CONSUMERS), "a consumer that holds nothing, or is retired")
    held = dict(placement.execute(HELD).fetchall())
    leaves = set(placement.execute(_MOVING_AWAY).fetchall())  # its cell may not know yet that it is to move
    preempted = preemptions(placement)
    world.victims |= preempted.keys()
    seen: dict[str, str] = {}
    for cell in world.cells:
        builds = world.committed(f"cell_{cell}")
        for id_, status, root, attempt in builds.execute(BUILDS) if builds is not None else ():
            if seen.setdefault(id_, cell) != cell:
                raise Broken(f"{id_} is known in cells {seen[id_]} and {cell}")
            if status not in ("active", "verifying") or held.get(id_) == root or id_ in preempted:
                continue
            # It may have been rebuilt since that other move of it began
            kept = any((holder_consumer(id_, one), root) in leaves for one in range(attempt, 0, -1))
            if status == "verifying" or not kept:
                raise Broken(f"{id_} is {status} on {root} and holds {held.get(id_)}")
    check_guests(world)


def preemptions(placement: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the builds that preempted each victim."""
    found = defaultdict[str, set[str]](set)
    for victim, by in placement.execute("SELECT victim, preemptor FROM preemptions"):
        found[victim].add(by)
    return found


def _check_affinity(world: "SimulatedWorld", placement: sqlite3.Connection) -> None:
    apart = {group: (name, several) for group, name, several in placement.execute(_AFFINITY_BROKEN)}
    for group in apart.keys() - world.split:
        reverted = world.reverted()
        if reverted is None:  # a cell is being written to
            return
        if reverted.isdisjoint(uuid for (uuid,) in placement.execute(_MEMBERS_OF, (group,))):
            name, several = apart[group]
            raise Broken(f"members of a server group are apart: {name} on {several} hosts")
    world.split = set(apart)


def split_groups(world: "SimulatedWorld") -> tuple[str, ...]:
    placement = world.committed("placement")
    found = (
        placement.execute("SELECT uuid, id FROM server_groups").fetchall() if placement is not None else ()
    )
    return tuple(f"server group {uuid} (affinity)" for uuid, number in found if number in world.split)


def check_waiting(world: "SimulatedWorld") -> None:
    placement = world.committed("placement")
    if placement is None:
        return
    last = placement.execute(_LAST_CHANGE).fetchone()[0]
    for changes in world.schedulers():
        room = changes.store.queues
        still = (
            not room.has_work
            and not room._trials
            and room.next_retry() is None
            and not changes.scheduler.pending.unsettled
        )
        still = still and changes.store.related.is_current
        if len(room) and still and changes.store.fitting.source.seen >= last:
            _check_none_fits(changes, placement)
            world.waiting_seen += len(room)


def _check_none_fits(changes: "WaitingBuilds", placement: sqlite3.Connection) -> None:
    room, source = changes.store.queues, changes.store.fitting.source
    book, now = changes.scheduler.book, changes.scheduler.clock.monotonic()
    hosts, groups = capacity_left(placement), _groups(placement)
    closed = {cell for (cell,) in placement.execute("SELECT name FROM cells WHERE NOT enabled")}
    up: dict[str, tuple[PlacedHost, set[str]]] = {}
    for placed in source.hosts():
        state = book.state(placed.cell, placed.uuid)
        if not placed.agent or not {DISABLED, FORCED_DOWN}.isdisjoint(placed.traits):
            continue
        if placed.cell in closed:
            continue
        if book.down(placed.cell, placed.agent, now) or (state is not None and not state.enabled):
            continue
        if (state.building if state is not None else 0) + recent_builds(
            book, placed.cell, placed.uuid, now
        ) >= 8:
            continue
        sent = [
            source.aggregates[aggregate].metadata
            for aggregate in placed.aggregates
            if aggregate in source.aggregates
        ]
        zones = {placed.zone, *(one.get("availability_zone", "") for one in sent)}
        up[placed.uuid] = placed, zones
    for request, waiting in changes.store.requests.items():
        message, several = waiting.message, needs_of(waiting.message)
        asked = asked_of(message.flavor)
        found: dict[str, int] = {}
        closed = room.reserved_before(request) if request in room else set()
        for root, providers in hosts.items():
            if root not in up:
                continue
            placed, zones = up[root]
            if message.zone and message.zone not in zones:
                continue
            names = {placed.host, root}
            if message.forced_host and message.forced_host not in names:
                continue
            if message.wanted_host and message.wanted_host not in names:
                continue
            if message.cell not in ("", placed.cell) or not names.isdisjoint(message.ignore_hosts):
                continue
            if root in closed:
                continue
            found[root] = min(
                max((free.get(name, 0) // amount for free in providers.values()), default=0)
                for name, amount in asked.items()
            )
        if _fitting_in(groups.get(group_of(message.parts) or ""), found) >= several:
            raise Broken(f"{request} ({asked} × {several}) waits, and would fit on {found}")


@dataclass
class _GroupNow:
    policy: str
    most: int
    there: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)


def _fitting_in(group: _GroupNow | None, found: dict[str, int]) -> int:
    if group is None or group.policy.startswith("soft"):
        return sum(found.values())
    if group.policy == "affinity":
        if group.there:
            found = {root: several for root, several in found.items() if root in group.there}
        return max(found.values(), default=0)
    crowd = {root: group.there.get(root, 0) + group.left.get(root, 0) for root in found}
    return sum(min(several, max(group.most - crowd[root], 0)) for root, several in found.items())


def _groups(placement: sqlite3.Connection) -> dict[str, _GroupNow]:
    groups = {
        uuid: _GroupNow(policy, most)
        for uuid, policy, most in placement.execute("SELECT uuid, policy, max_per_host FROM server_groups")
    }
    for uuid, root, kind, several in placement.execute(_MEMBERS):
        here = groups[uuid].left if kind in HOLDER_TYPES else groups[uuid].there
        here[root] = here.get(root, 0) + several
    return groups


def capacity_left(placement: sqlite3.Connection) -> dict[str, dict[str, dict[str, int]]]:
    """Return the free amount by root, provider and resource class."""
    hosts: dict[str, dict[str, dict[str, int]]] = {}
    for root, provider, name, free in placement.execute(_FREE):
        hosts.setdefault(root, {}).setdefault(provider, {})[name] = int(free)
    return hosts


def refuse_any(rows: object, complaint: str) -> None:
    found = list(rows)  # type: ignore[call-overload]  # a sqlite3 cursor
    if found:
        raise Broken(f"{complaint}: {found}")


Held = Mapping[str, Mapping[str, int]]  # provider → class → amount
_OTHER_ATTEMPTS = 12  # attempts before and after
LONGEST_OVERLAP = 15.0

_CAPACITIES = """
SELECT c.uuid, r.uuid, p.uuid, k.name, a.used FROM allocations a JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN resource_classes k ON k.id = a.resource_class_id
"""
TYPES = "SELECT c.uuid, t.name FROM consumers c JOIN consumer_types t ON t.id = c.consumer_type_id"


class GuestSeen(NamedTuple):
    """A guest on a host, perhaps incomplete."""

    build: str
    attempt: int
    root: str
    allocations: Held = MappingProxyType({})
    runs: bool = False
    booted: bool = True  # by an order to build it; not by a phase of a move


def check_guests(world: "SimulatedWorld") -> None:
    """Check that the resources of each guest are held by its build or by a holder consumer of its attempt,
    and that no two guests share them.
    """
    placement = world.committed("placement")
    if placement is None or not (guests := world.guests()):
        return
    allocations = allocations_by_consumer(placement)
    types = dict(placement.execute(TYPES).fetchall())
    whose: dict[str, GuestSeen] = {}  # consumer → the guest that uses its resources
    preempted, there = preemptions(placement), {(guest.build, guest.root) for guest in guests}
    for guest in guests:
        holder = _holder(guest, allocations, types)
        if holder is None and guest.build in preempted:
            if both := [by for by in preempted[guest.build] if (by, guest.root) in there]:
                raise Broken(f"{both} preempted {guest.build}, whose guest is still on {guest.root}")
            continue
        if holder is None:
            raise Broken(
                f"a guest of {guest.build}, of attempt {guest.attempt}, is on {guest.root},"
                " and no consumer holds its resources"
            )
        other = whose.setdefault(holder, guest)
        if other is not guest:
            raise Broken(
                f"{guest.build} holds the resources of one guest, and there are two: of attempt"
                f" {other.attempt} on {other.root}, of attempt {guest.attempt} on {guest.root}"
            )
    _check_one_runs(world, guests, types)


def allocations_by_consumer(placement: sqlite3.Connection) -> Mapping[tuple[str, str], Held]:
    allocations: defaultdict[tuple[str, str], defaultdict[str, dict[str, int]]]
    allocations = defaultdict(lambda: defaultdict(dict))
    for consumer, root, provider, name, used in placement.execute(_CAPACITIES):
        allocations[consumer, root][provider][name] = used
    return allocations


def _holder(
    guest: GuestSeen, allocations: Mapping[tuple[str, str], Held], types: Mapping[str, str]
) -> str | None:
    build, attempt = guest.build, guest.attempt
    later = range(attempt + 1, attempt + _OTHER_ATTEMPTS)
    earlier = range(attempt - 1, max(attempt - _OTHER_ATTEMPTS, 0), -1)
    others = ((later, HOLDER_TYPES), (earlier, (MIGRATION,)))
    names = chain(
        (holder_consumer(build, attempt), build),
        (name for span, of in others for one in span if types.get(name := holder_consumer(build, one)) in of),
    )
    return next((one for one in names if _holds(allocations.get((one, guest.root)), guest.allocations)), None)


def _holds(held: Held | None, asked: Held) -> bool:
    return held is not None and all(
        held.get(provider, {}).get(name, 0) >= amount
        for provider, resources in asked.items()
        for name, amount in resources.items()
    )


def _check_one_runs(world: "SimulatedWorld", guests: list[GuestSeen], types: Mapping[str, str]) -> None:
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
    for key in world.overlapping.keys() - beside.keys():
        del world.overlapping[key]
    for key, guest in beside.items():
        if now - world.overlapping.setdefault(key, now) > LONGEST_OVERLAP:
            raise Broken(f"{_twice(running[guest.build], guest)}, for {LONGEST_OVERLAP:g} s")


def _twice(one: GuestSeen, other: GuestSeen) -> str:
    return (
        f"{one.build} runs twice: of attempt {one.attempt} on {one.root}, and of attempt"
        f" {other.attempt} on {other.root}"
    )


def check_at_rest(world: "SimulatedWorld") -> None:
    """Check a world in which every build and move has ended, and no message waits."""
    check_always(world)
    if world.broker.dead:
        raise Broken(f"dead letters: {[letter.reason for letter in world.broker.dead.values()]}")
    if rescued := sum(one.store.rows.rescued for one in world.waiting.values()):
        raise Broken(f"{rescued} were found by the sweep: no change of a host had woken them")
    placement = at_rest(world, "placement")
    held = dict(placement.execute(HELD).fetchall())
    ended_badly = world.client.moving.ended_badly
    living = {build for build, (status, _) in world.client.ends.items() if status == "active"}
    living -= world.client.deleted
    preempted = preemptions(placement)
    for victim, by in preempted.items():
        if unplaced := [each for each in by if world.client.ends[each][0] == "unplaceable"]:
            raise Broken(f"{victim} was preempted by {unplaced}, which has no host")
    stands: dict[str, tuple[str, str, int]] = {}
    for cell in world.cells:
        for id_, status, root, attempt in at_rest(world, f"cell_{cell}").execute(BUILDS):
            if status not in ("active", "shelved", "error", "deleted"):
                raise Broken(f"{id_} is still {status} in cell {cell}")
            stands[id_] = status, root, attempt
    living -= {victim for victim in preempted if stands[victim][0] == "deleted"}
    shelved = {build for build in living if stands[build][0] == "shelved"}
    should_hold = living - shelved
    if set(held) != should_hold:
        raise Broken(f"held without an owner: {set(held) - should_hold}; lost: {should_hold - set(held)}")
    refuse_any(placement.execute(HOLDERS), "held for guests that do not exist")
    guests = defaultdict[str, list[GuestSeen]](list)
    for guest in world.guests():
        if guest.build not in should_hold:
            raise Broken(f"a guest of {guest.build}, of attempt {guest.attempt}, was left on {guest.root}")
        guests[guest.build].append(guest)
    for build, there in guests.items():
        _, root, attempt = stands[build]
        if len(there) > 1 or there[0].root != root:
            raise Broken(f"{build} is on {root} by its cell, and its guests are {there}")
        if (there[0].attempt != attempt or not there[0].runs) and build not in ended_badly:
            raise Broken(f"{build} runs as attempt {attempt} by its cell, and its guest is {there[0]}")
    if not world.forgetful and (lost := should_hold - set(guests) - ended_badly):
        raise Broken(f"active, and without a guest: {lost}")


def check_builds(world: "SimulatedWorld", builds: Mapping[str, Build]) -> None:
    placement = at_rest(world, "placement")
    allocations = allocations_by_consumer(placement)
    generations = dict(placement.execute("SELECT uuid, generation FROM consumers").fetchall())
    guests = {guest.build: guest for guest in world.guests()}
    for id_, build in builds.items():
        if build.status != "active" or id_ in world.client.deleted:
            continue
        held = allocations.get((id_, build.host.root), {})
        asked = {"VCPU": build.spec.flavor.vcpus, "MEMORY_MB": build.spec.flavor.memory_mb}
        for name, amount in asked.items() if build.spec.flavor.name != "metal" else ():
            if (has := sum(mapping.get(name, 0) for mapping in held.values())) != amount:
                raise Broken(f"{id_} is of {amount} {name} by its cell, and holds {has}")
        if build.generation != generations[id_]:
            raise Broken(f"{id_} has another generation by its cell than {generations[id_]}: {build}")
        if held != (known := build.host.choice.allocations):
            raise Broken(f"{id_} holds {held}, and by its cell {known}")
        guest = guests.get(id_)
        ended_badly = id_ in world.client.moving.ended_badly
        if guest is not None and guest.allocations not in ({}, held) and not ended_badly:
            raise Broken(f"{id_} holds {held}, and its guest has {guest.allocations}")
        if build.leftovers:
            raise Broken(f"{id_} has left {build.leftovers}, for which nothing is kept")


def at_rest(world: "SimulatedWorld", store: str) -> sqlite3.Connection:
    connection = world.committed(store)
    if connection is None:
        raise Broken("a transaction is open after all work has ended")
    return connection


class Broken(AssertionError):
    """An invariant does not hold."""
