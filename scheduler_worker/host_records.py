"""Stores the health of hosts for the next scheduler that starts, and answers queries about it.

Several schedulers write changes to the same rows. When a host sends a heartbeat again, a scheduler deletes
the host's row if it has read or written this row. A scheduler that starts deletes rows that a stopped
scheduler left.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.host_health import FindHostHealth, HostCapabilities, HostHealth, HostHealthFound, condition
from bus.sql.database import Database
from bus.sql.statement import Transaction, sql
from bus.vocabulary import portions
from scheduler_worker.core.demand import DemandCounts, weight_at
from scheduler_worker.core.host_map import HostKey
from scheduler_worker.hosts import HOSTS, HostBook
from scheduler_worker.store import demand as stored_demand

PAGE = 1000  # rows in one transaction


class HostRecords:
    """Stores the health of hosts that this scheduler found, and reads what other schedulers stored."""

    def __init__(self, book: HostBook, source: CandidateSource, database: Database, clock: Clock) -> None:
        self._book = book
        self._source = source
        self._database = database
        self._clock = clock
        self._stored: dict[HostKey, HostHealth] = {}

    async def load(self) -> None:
        """Read the health of hosts that schedulers stored; to be called before the first request."""
        after, more = ("", ""), True
        while more:
            async with self._database.read() as tx:
                found = await page(tx, after, PAGE)
            self._stored.update(((health.cell, health.root), health) for health in found)
            more = len(found) == PAGE
            after = (found[-1].cell, found[-1].root) if found else after
        self._book.restore(self._stored.values())

    async def store(self) -> None:
        """Store the health of hosts whose condition has changed, so that it survives a restart."""
        now = self._health()
        stored, recorded = self._stored, {key: health for key, health in now.items() if health.recorded}
        new = {key: is_ for key, is_ in recorded.items() if _condition(stored.get(key)) != _condition(is_)}
        unknown = {key for key, health in now.items() if health.unknown}
        not_up = unknown.union(recorded)
        await self._write(new, [key for key in stored if self._book.has(key) and key not in not_up])

    async def find(self, question: FindHostHealth) -> HostHealthFound:
        """Return a page of hosts with their health."""
        health = self._health()
        asked = frozenset(question.roots)
        after = [host for host in health.values() if host.root > question.after]
        found = sorted((host for host in after if not asked or host.root in asked), key=lambda row: row.root)
        return HostHealthFound(
            hosts=tuple(found[: question.limit]),
            more=len(found) > question.limit,
            counts=self._counts(health) if question.counted else {},
            capabilities=tuple(self._capabilities(question.roots)) if question.described else (),
        )

    async def measure(self) -> None:
        """Set the metric of hosts by state."""
        states = sum(map(Tally, self._counts(self._health()).values()), Tally[str]())
        for state in ("up", "down", "draining", "disabled", "unknown"):
            HOSTS.labels(state).set(states[state])

    def _health(self) -> dict[HostKey, HostHealth]:
        return self._book.health(self._source, self._clock.monotonic(), self._clock.now())

    def _capabilities(self, roots: Sequence[str]) -> list[HostCapabilities]:
        return self._book.capabilities(roots, self._clock.monotonic(), self._clock.now())

    def _counts(self, health: Mapping[HostKey, HostHealth]) -> dict[str, dict[str, int]]:
        counts: defaultdict[str, dict[str, int]] = defaultdict(Tally)
        for host in self._source.hosts():
            if host.agent:
                counts[host.cell][condition(host.traits, health.get((host.cell, host.uuid)))] += 1
        return counts

    async def prune(self) -> None:
        """Delete the stored health of hosts that placement no longer has."""
        await self._write({}, [key for key in self._stored if not self._book.has(key)])

    async def _write(self, new: Mapping[HostKey, HostHealth], up: list[HostKey]) -> None:
        # Sorted by key, so that two schedulers that write the same rows do not deadlock.
        for some in portions(sorted(new), PAGE):
            async with self._database.write() as tx:
                await _PUT(tx, [(*key, _encode(new[key]).decode()) for key in some])
            self._stored.update((key, new[key]) for key in some)
        for some in portions(sorted(up), PAGE):
            async with self._database.write() as tx:
                await _DROP(tx, some)
            for key in some:
                del self._stored[key]


def _condition(health: HostHealth | None) -> object:
    """Return what of the health of a host is stored again when it changes."""
    return health and (health.availability, health.enabled, health.why_disabled, health.forced_down)


_PUT = sql("""
    INSERT INTO host_health (cell, root, health) SELECT n.cell, n.root, n.health
    FROM {n: cell str, root str, health str} WHERE true
    ON CONFLICT (cell, root) DO UPDATE SET health = excluded.health RETURNING root
""")
_DROP = sql("""
    DELETE FROM host_health WHERE (cell, root) IN (SELECT n.cell, n.root FROM {n: cell str, root str})
    RETURNING root
""")
_PAGE = sql("""
    SELECT cell, root, health FROM host_health WHERE (cell, root) > (:cell, :root)
    ORDER BY cell, root LIMIT :most
""")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HostHealth).decode


async def page(tx: Transaction, after: HostKey, limit: int) -> list[HostHealth]:
    """Return a page of stored health, ordered by cell and root."""
    rows = await _PAGE(tx, cell=after[0], root=after[1], most=limit)
    return [_decode(row["health"]) for row in rows]


LEAST_REQUESTS = 0.01  # of a shape, counted as of now; with less it is forgotten


class DemandRecords:
    """Stores the usual shapes of requests, which the schedulers of a region count together."""

    def __init__(self, demand: DemandCounts, database: Database, clock: Clock) -> None:
        self._demand = demand
        self._database = database
        self._clock = clock

    async def store(self) -> None:
        """Add what this scheduler has counted to the stored counts, and read them."""
        counted = self._demand.taken()
        try:
            async with self._database.write() as tx:
                await stored_demand.add(tx, counted)
                await stored_demand.forget(tx, LEAST_REQUESTS * weight_at(self._clock.now()))
                found = await stored_demand.find(tx)
        except BaseException:
            self._demand.put_back(counted)
            raise
        self._demand.replace(found)
