"""The check of failover headroom: after each commit of placement, any lost host or rack must evacuate."""

import json
import sqlite3
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from berth.composition import open_placement
from berth.settings import Settings
from bus.claims import HOLDER_TYPES
from bus.host_health import DISABLED, FORCED_DOWN
from bus.messages import BuildRequested
from compute_sim.machines import SimAgent
from features.groups.messages import GroupPart
from features.headroom.controller import HeadroomController
from features.headroom.messages import FindHeadroom, Headroom
from features.headroom.tests.support.evacuations import HEADROOM, Held, HostsToLose
from features.reservations import store as stored
from features.reservations.messages import RESERVATION
from placement_worker import Placement
from tests.simulation.databases import SimulatedDatabase
from tests.simulation.invariants import TYPES, Broken, allocations_by_consumer, capacity_left
from tests.simulation.random_requests import GROUPS, ZONES

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

T = TypeVar("T")
# A change of another placement process is known after at most 5 s, and the gauge follows 5 s later; the
# remainder is for statements that wait.
LONGEST_STALE = 15.0
_SLOTS = "SELECT uuid FROM reservation_slots WHERE reservation = ?"
_CLOSED = f"""
SELECT p.uuid FROM resource_provider_traits m JOIN traits t ON t.id = m.trait_id
JOIN resource_providers p ON p.id = m.resource_provider_id WHERE t.name IN ('{DISABLED}', '{FORCED_DOWN}')
"""
_ZONES = """
SELECT p.uuid, a.metadata FROM aggregates a JOIN resource_provider_aggregates m ON m.aggregate_id = a.id
JOIN resource_providers p ON p.id = m.resource_provider_id WHERE a.metadata IS NOT NULL
"""
_APART = """
SELECT DISTINCT g.uuid, g.max_per_host, c.uuid, c.keeps_for, p.uuid FROM server_groups g
JOIN consumers c ON c.group_id = g.id JOIN allocations a ON a.consumer_id = c.id
JOIN resource_providers p ON p.id = a.resource_provider_id WHERE g.policy = 'anti-affinity'
"""


def with_racks(agents: Iterable[SimAgent], *, zoned: bool) -> list[SimAgent]:
    """Return a fleet in which the hosts of each agent are a rack. With `zoned`, each rack has hosts of two
    zones.
    """
    zones = [zone.name if zoned else "" for zone in ZONES]
    return [
        replace(
            agent,
            hosts=tuple(
                replace(host, labels={"rack": agent.agent}, zone=zones[number % len(zones)])
                for number, host in enumerate(agent.hosts)
            ),
        )
        for agent in agents
    ]


def coverable(request: BuildRequested, *, zoned: bool) -> BuildRequested:
    """Return a request whose instances headroom can cover: small ones, some of them in server groups whose
    policy is not affinity.
    """
    own = Random(request.request)
    joins = own.choice((GROUPS[0], GROUPS[1], GROUPS[3])) if own.random() < 0.3 else None
    flavor = msgspec.structs.replace(
        request.flavor, name="small", vcpus=own.randint(1, 3), memory_mb=256, extra_specs={}
    )
    zone = own.choice(ZONES).name if zoned and own.random() < 0.5 else request.zone
    parts = request.parts.without(GroupPart)
    if joins:
        request = msgspec.structs.replace(request, project=joins.project)
        parts = parts.having(GroupPart(group=joins.group))
    return msgspec.structs.replace(request, flavor=flavor, parts=parts, zone=zone)


@dataclass
class HeadroomCheck:
    """Checks the headroom of a world after each commit of placement, before any other task runs.

    1. What `berth host headroom show` would answer now, by placement's functions on the committed state, is
       compared with a replay. If the answer is `kept`, each domain (a host; also a rack if the headroom has
       that level) is lost on trial: all its instances, in a random sequence, must find a slot outside of it
       on a host that accepts them. A host accepts an instance if it is neither disabled nor forced down, is
       in the same cell, has not too many members of its anti-affinity group, and is in the zone that the
       request asked for, if the lost host is in that zone. The
       replay reads the tables itself, and chooses and claims slots with the functions of schedulers and
       placement.
    2. The gauge of a placement process is older: it says what the process found when it last adjusted the
       slots. It must not say `kept` when every answer of the last LONGEST_STALE seconds was `not kept`.
    """

    world: "SimulatedWorld"
    levels: tuple[str, ...]
    commits: int = 0  # that were checked
    kept: int = 0  # after which headroom was kept
    losses: int = 0  # of domains with instances, replayed
    evacuated: int = 0  # instances, in these replays
    turns: int = 0  # of the answer
    _last: int = 0  # change number
    _answer: Headroom | None = None
    _lacks_since: float = 0.0
    _observer: Placement | None = None
    _chance: Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = Random(f"losses of {self.world.seed}")

    async def begin(self, placement: Placement) -> None:
        """Set the headroom, and check each later commit."""
        made = msgspec.structs.replace(HEADROOM, levels=self.levels, returns=False)
        async with placement.database.write() as tx:  # an edit is refused: no host has reported its rack yet
            await stored.make(tx, made, placement.clock.now())
        self.world.databases["placement"].on_commit = lambda: self.world.check(lambda _: self._on_commit())

    def check_gauges(self) -> None:
        """Check that no placement process reports headroom as kept that has long been lost."""
        answer = self._answer
        if answer is None or answer.kept or self.world.time() - self._lacks_since <= LONGEST_STALE:
            return
        for placement in self.world.placements():
            if placement.of(HeadroomController).kept:
                raise Broken(f"headroom is reported as kept, and was lost at {self._lacks_since}: {answer}")

    def is_settled(self) -> bool:
        """Return whether the headroom is kept, or cannot be."""
        return self._answer is None or self._answer.kept or bool(self._answer.lacking)

    def _on_commit(self) -> None:
        database = self.world.databases["placement"]
        tables = self.world.committed("placement")
        assert tables is not None
        number = tables.execute("SELECT COALESCE(max(number), 0) FROM change_log").fetchone()[0]
        if number == self._last:
            return
        self._last = number
        self.commits += 1
        was, self._answer = self._answer, _at_once(self._asked(database))
        if was is None or was.kept != self._answer.kept:
            self.turns += was is not None
            self._lacks_since = self.world.time()
        if self._answer.kept:
            self.kept += 1
            self._replay(tables, number)

    async def _asked(self, database: SimulatedDatabase) -> Headroom:
        if self._observer is None:
            self._observer = open_placement(Settings(), _QuietDatabase(database), self.world.clock)
            await self._observer.book.read_again(self._observer.database)
            await self._observer.memory.reload()
        await self._observer.memory.fresh()
        [found] = (await self._observer.of(HeadroomController).find(FindHeadroom())).headrooms
        return found

    def _replay(self, tables: sqlite3.Connection, number: int) -> None:
        hosts = self._hosts(tables)
        domains = {f"host {root}": frozenset({root}) for root in hosts.free}
        if "rack" in self.levels:
            domains |= {
                f"rack {agent.agent}": frozenset(host.root for host in agent.hosts)
                for agent in self.world.fleet()
            }
        for domain, lost in domains.items():
            if not (moving := sum(root in lost for root, _ in hosts.instances.values())):
                continue
            self.losses += 1
            self.evacuated += moving
            if left := hosts.evacuate(lost, self._chance):
                raise Broken(f"headroom is kept at change {number}, and {domain} does not evacuate: {left}")

    def _hosts(self, tables: sqlite3.Connection) -> HostsToLose:
        cells = {host.root: agent.cell for agent in self.world.fleet() for host in agent.hosts}
        closed = {root for (root,) in tables.execute(_CLOSED)}
        zones = {host.root: {host.zone} for agent in self.world.fleet() for host in agent.hosts}
        for root, metadata in tables.execute(_ZONES):
            zones[root].add(json.loads(metadata).get("availability_zone", ""))
        slots = {slot for (slot,) in tables.execute(_SLOTS, (HEADROOM.id,))}
        types = dict(tables.execute(TYPES).fetchall())
        held: dict[str, Held] = {}
        for (consumer, root), providers in allocations_by_consumer(tables).items():
            assert consumer not in held, "a world with headroom has no shared pools"
            held[consumer] = root, {provider: dict(amounts) for provider, amounts in providers.items()}
        free = capacity_left(tables)
        instances = {id_: held[id_] for id_ in held if types.get(id_) not in (*HOLDER_TYPES, RESERVATION)}

        def accepts(instance: str, root: str) -> bool:
            leaves, zone = held[instance][0], self._zone(instance)
            in_zone = zone not in zones.get(leaves, ()) or zone in zones.get(root, ())
            return root not in closed and cells[root] == cells[leaves] and in_zone

        assert self._observer is not None
        index = self._observer.memory.index
        groups, members = dict[str, tuple[str, int]](), dict[str, dict[str, set[str]]]()
        for group, most, consumer, held_for, root in tables.execute(_APART):
            groups[consumer] = group, most
            members.setdefault(group, {}).setdefault(root, set()).add(held_for or consumer)
        return HostsToLose(index, free, instances, _of(held, slots), accepts, groups, members)

    def _zone(self, instance: str) -> str:
        request = self.world.client.accepted.get(instance)
        return request.zone if request is not None else ""


def _of(held: dict[str, Held], consumers: Collection[str]) -> dict[str, Held]:
    return {id_: held[id_] for id_ in held if id_ in consumers}


class _QuietDatabase(SimulatedDatabase):
    """The committed content of a database, read without a pause and without its locks."""

    def __init__(self, database: SimulatedDatabase) -> None:
        super().__init__(None)
        assert self._file is not None
        self._file.close()
        self._file, self.timeline, self._is_used = database._file, database.timeline, True


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine waits")
