"""Checks of a cloud after every step, read from its databases."""

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.candidates import PlacedHost
from bus.claims import KEEPERS, holder_consumer
from bus.host_health import DISABLED, FORCED_DOWN
from tests.simulation.broken import Broken
from tests.simulation.guest_checks import check_guests

if TYPE_CHECKING:
    from scheduler_worker.waiting.store import HostChanges
    from tests.simulation.world import SimulatedWorld

_OVER = """
SELECT p.name, c.name, i.used, i.total, i.reserved, i.allocation_ratio FROM inventories i
JOIN resource_providers p ON p.id = i.resource_provider_id
JOIN resource_classes c ON c.id = i.resource_class_id
WHERE i.used < 0 OR (i.used > (i.total - i.reserved) * i.allocation_ratio AND i.used > i.used_when_set)
"""
_SUMS = """
SELECT p.name, c.name, i.used, COALESCE(sum(a.used), 0) FROM inventories i
JOIN resource_providers p ON p.id = i.resource_provider_id
JOIN resource_classes c ON c.id = i.resource_class_id
LEFT JOIN allocations a
  ON a.resource_provider_id = i.resource_provider_id AND a.resource_class_id = i.resource_class_id
GROUP BY i.resource_provider_id, i.resource_class_id HAVING i.used <> COALESCE(sum(a.used), 0)
"""
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
_KEEPERS = "('CLEANUP', 'MIGRATION')"
KEPT = f"""
SELECT c.uuid, k.name FROM consumers c JOIN consumer_types k ON k.id = c.consumer_type_id
WHERE k.name IN {_KEEPERS}
"""
_LEAVES = f"""
SELECT DISTINCT c.uuid, r.uuid FROM allocations a JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN consumer_types k ON k.id = c.consumer_type_id AND k.name = 'MIGRATION' WHERE {_ON_ITS_HOST}
"""
_OF_GROUPS = f"""
FROM server_groups g JOIN consumers c ON c.group_id = g.id JOIN allocations a ON a.consumer_id = c.id
JOIN resource_providers p ON p.id = a.resource_provider_id
LEFT JOIN consumer_types k ON k.id = c.consumer_type_id WHERE {_ON_ITS_HOST}
"""
_CROWDED = f"""
SELECT g.name, p.root_provider_id, count(DISTINCT COALESCE(c.keeps_for, c.uuid)) {_OF_GROUPS}
AND g.policy = 'anti-affinity' GROUP BY g.id, p.root_provider_id
HAVING count(DISTINCT COALESCE(c.keeps_for, c.uuid)) > g.max_per_host
"""
_APART = f"""
SELECT g.id, g.name, count(DISTINCT p.root_provider_id) {_OF_GROUPS}
AND g.policy = 'affinity' AND k.name NOT IN {_KEEPERS}
GROUP BY g.id HAVING count(DISTINCT p.root_provider_id) > 1
"""
_MEMBERS_OF = "SELECT uuid FROM consumers WHERE group_id = ?"
_MEMBERS = f"""
SELECT g.uuid, (SELECT r.uuid FROM resource_providers r WHERE r.id = p.root_provider_id), k.name,
count(DISTINCT c.id) {_OF_GROUPS} GROUP BY g.id, p.root_provider_id, k.name
"""
_ROOM = """
SELECT r.uuid, p.uuid, c.name, CAST((i.total - i.reserved) * i.allocation_ratio AS INTEGER) - i.used
FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id
JOIN resource_providers r ON r.id = p.root_provider_id
JOIN resource_classes c ON c.id = i.resource_class_id
"""
_LAST_CHANGE = "SELECT COALESCE(max(number), 0) FROM change_log"
_EMPTY = """
SELECT uuid FROM consumers WHERE id NOT IN (SELECT consumer_id FROM allocations)
"""
_RETIRED = "SELECT c.uuid FROM consumers c JOIN retired_consumers r ON r.uuid = c.uuid"
BUILDS = "SELECT id, status, root, attempt FROM builds"


def check_always(world: "SimulatedWorld") -> None:
    """After every settled message, wherever no transaction is open."""
    placement = world.committed("placement")
    if placement is None:
        return
    refuse_any(placement.execute(_OVER), "more is used than there is")
    refuse_any(placement.execute(_SUMS), "used is not the sum of the allocations")
    refuse_any(placement.execute(_SPREAD), "held on two hosts at once")
    refuse_any(placement.execute(_CROWDED), "more of a server group on a host than may be")
    _together(world, placement)
    refuse_any(placement.execute(_EMPTY), "a consumer that holds nothing")
    refuse_any(placement.execute(_RETIRED), "retired, and holds resources")
    held = dict(placement.execute(HELD).fetchall())
    leaves = set(placement.execute(_LEAVES).fetchall())  # its cell may not know yet that it is to move
    seen: dict[str, str] = {}
    for cell in world.cells:
        builds = world.committed(f"cell_{cell}")
        for id_, status, root, attempt in builds.execute(BUILDS) if builds is not None else ():
            if seen.setdefault(id_, cell) != cell:
                raise Broken(f"{id_} is known in cells {seen[id_]} and {cell}")
            if status not in ("active", "verifying") or held.get(id_) == root:
                continue
            # It may have been rebuilt since that other move of it began
            kept = any((holder_consumer(id_, one), root) in leaves for one in range(attempt, 0, -1))
            if status == "verifying" or not kept:
                raise Broken(f"{id_} is {status} on {root} and holds {held.get(id_)}")
    check_guests(world)


def _together(world: "SimulatedWorld", placement: sqlite3.Connection) -> None:
    apart = {group: (name, several) for group, name, several in placement.execute(_APART)}
    for group in apart.keys() - world.apart:
        went_back = world.went_back()
        if went_back is None:  # a cell is being written to
            return
        if went_back.isdisjoint(uuid for (uuid,) in placement.execute(_MEMBERS_OF, (group,))):
            name, several = apart[group]
            raise Broken(f"members of a server group are apart: {name} on {several} hosts")
    world.apart = set(apart)


def gone_apart(world: "SimulatedWorld") -> tuple[str, ...]:
    placement = world.committed("placement")
    found = (
        placement.execute("SELECT uuid, id FROM server_groups").fetchall() if placement is not None else ()
    )
    return tuple(f"server group {uuid} (affinity)" for uuid, number in found if number in world.apart)


def check_waiting(world: "SimulatedWorld") -> None:
    placement = world.committed("placement")
    if placement is None:
        return
    last = placement.execute(_LAST_CHANGE).fetchone()[0]
    for changes in world.waiting_rooms():
        room = changes.store.room
        still = not room.restless and not room.busy and not changes.scheduler.pending.unsettled
        still = still and changes.store.related.settled
        if len(room) and still and changes.store.sight.source.seen >= last:
            _nobody_fits(changes, placement)
            world.looked_at_waiting += len(room)


def _nobody_fits(changes: "HostChanges", placement: sqlite3.Connection) -> None:
    room, source = changes.store.room, changes.store.sight.source
    book, now = changes.scheduler.book, changes.scheduler.clock.monotonic()
    hosts, groups = _free(placement), _groups(placement)
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
        if (state.building if state is not None else 0) + book.recent(placed.cell, placed.uuid, now) >= 8:
            continue
        told = [
            source.aggregates[aggregate].metadata
            for aggregate in placed.aggregates
            if aggregate in source.aggregates
        ]
        zones = {placed.zone, *(one.get("availability_zone", "") for one in told)}
        up[placed.uuid] = placed, zones
    for request, waiter in room.everybody.items():
        message, several = changes.store.requests[request].message, waiter.needs
        flavor = message.flavor
        asked = {"CUSTOM_BAREMETAL": 1} if flavor.name == "metal" else {"VCPU": flavor.vcpus}
        if flavor.memory_mb and flavor.name != "metal":
            asked["MEMORY_MB"] = flavor.memory_mb
        found: dict[str, int] = {}
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
            whose = room.kept.get(root)
            if whose is not None and whose.key < waiter.key and whose.kind != waiter.kind:
                continue
            if room.kept_elsewhere.get(root, waiter.key) < waiter.key:
                continue
            found[root] = min(
                max((free.get(name, 0) // amount for free in providers.values()), default=0)
                for name, amount in asked.items()
            )
        if _room_in(groups.get(message.hints.group or ""), found) >= several:
            raise Broken(f"{request} ({asked} × {several}) waits, and would fit on {found}")


@dataclass
class _GroupNow:
    policy: str
    most: int
    there: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)


def _room_in(group: _GroupNow | None, found: dict[str, int]) -> int:
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
        here = groups[uuid].left if kind in KEEPERS else groups[uuid].there
        here[root] = here.get(root, 0) + several
    return groups


def _free(placement: sqlite3.Connection) -> dict[str, dict[str, dict[str, int]]]:
    """Root → provider → class → what is free of it."""
    hosts: dict[str, dict[str, dict[str, int]]] = {}
    for root, provider, name, free in placement.execute(_ROOM):
        hosts.setdefault(root, {}).setdefault(provider, {})[name] = int(free)
    return hosts


def refuse_any(rows: object, complaint: str) -> None:
    found = list(rows)  # type: ignore[call-overload]  # a sqlite3 cursor
    if found:
        raise Broken(f"{complaint}: {found}")
