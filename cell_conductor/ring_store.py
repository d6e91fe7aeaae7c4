"""SQL for agents' leases and bare-metal nodes. Functions take and return Python values, not database rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from bus.leases import LeaseAsked, NodeLent
from bus.sql.statement import Transaction, sql
from cell_conductor.core.build import Build
from cell_conductor.core.ring import RingMember, RingNode, Use
from cell_conductor.store import BUILD, BUILDS, WITH_LEFTOVERS, StoredForm

T = TypeVar("T", RingMember, RingNode)

_MEMBER = "agent, pool, run, epoch, beat, alive, disabled, lease, seen, asked_at"
_NODE = 'root, owner, epoch, version, leaving, moves_to AS "to"'
_BUSY = "('building', 'swapping', 'active', 'deleting')"  # an instance on bare metal does not move

_RENEW = sql(f"""
    UPDATE ring_members SET beat = beat + 1, asked_at = :NOW,
    seen = CASE WHEN epoch <> :epoch THEN 0 WHEN seen > :seen THEN seen ELSE :seen END
    WHERE agent = :agent AND pool = :pool AND run = :run AND alive RETURNING {_MEMBER}
""")
# Replaces a lease only if it was not renewed since it was read as expired.
_JOIN = sql(f"""
    INSERT INTO ring_members (agent, pool, run, epoch, beat, alive, disabled, lease, seen, asked_at)
    VALUES (:agent, :pool, :run, 1, 0, true, false, CAST(:lease AS double precision), 0, :NOW)
    ON CONFLICT (agent) DO UPDATE SET pool = excluded.pool, run = excluded.run, beat = 0, alive = true,
    epoch = ring_members.epoch + 1, seen = 0, lease = excluded.lease, asked_at = excluded.asked_at
    WHERE ring_members.epoch = :epoch AND ring_members.beat = :beat RETURNING {_MEMBER}
""")
_MEMBERS = sql(f"SELECT {_MEMBER} FROM ring_members WHERE :pool = '' OR pool = :pool ORDER BY agent")
# Pools with nodes that may change their agent: it has confirmed that it stopped, or its lease has expired.
STOPPED = sql("""
    SELECT DISTINCT ring_nodes.pool FROM ring_nodes
    JOIN ring_members ON ring_members.agent = ring_nodes.owner
    WHERE leaving <> '' AND (ring_members.seen >= ring_nodes.version OR NOT ring_members.alive)
""")
# Marks a lease as expired unless it was renewed since it was read.
EXPIRE = sql("""
    UPDATE ring_members SET alive = false
    WHERE agent = :agent AND epoch = :epoch AND beat = :beat AND alive RETURNING agent
""")
LEFT = sql(
    "UPDATE ring_members SET alive = false WHERE agent = :agent AND run = :run AND alive RETURNING agent"
)
DISABLE = sql("UPDATE ring_members SET disabled = :disabled WHERE agent = :agent RETURNING agent")
# Deletes the records of agents with expired leases and without nodes.
FORGET = sql("""
    DELETE FROM ring_members WHERE NOT alive AND NOT disabled AND asked_at < :before AND agent NOT IN
    (SELECT owner FROM ring_nodes) RETURNING agent
""")
_LOCK = sql("""
    INSERT INTO ring_pools (pool, version) VALUES (:pool, 0)
    ON CONFLICT (pool) DO UPDATE SET version = ring_pools.version RETURNING version
""")
_VERSION = sql("SELECT version FROM ring_pools WHERE pool = :pool")
_COUNT_ON = sql("UPDATE ring_pools SET version = :version WHERE pool = :pool RETURNING version")
_NODES = sql(f"SELECT {_NODE} FROM ring_nodes WHERE pool = :pool ORDER BY root")
_CHANGED = sql("""
    SELECT root, owner, epoch, leaving, version FROM ring_nodes
    WHERE pool = :pool AND version > :seen AND (:seen > 0 OR owner = :agent) ORDER BY version LIMIT :most
""")
_OWNERS = sql(
    "SELECT ring_nodes.root, owner, epoch FROM {n: root str} JOIN ring_nodes ON ring_nodes.root = n.root"
)
_ADD = sql("""
    INSERT INTO ring_nodes (root, pool, owner, epoch, version, leaving, moves_to)
    SELECT n.root, n.pool, '', 0, 0, '', '' FROM {n: root str, pool str} WHERE true
    ON CONFLICT (root) DO NOTHING RETURNING root
""")
_SAVE = sql("""
    UPDATE ring_nodes SET owner = n.owner, epoch = n.epoch, version = n.version, leaving = n.leaving,
    moves_to = n.moves_to
    FROM {n: root str, owner str, epoch int, version int, leaving str, moves_to str}
    WHERE ring_nodes.root = n.root RETURNING ring_nodes.root
""")
DROP = sql("DELETE FROM ring_nodes WHERE root IN (SELECT n.root FROM {n: root str}) RETURNING root")
_IN_USE = sql(f"""
    SELECT placed_builds.root, builds.status
    FROM ring_nodes JOIN placed_builds ON placed_builds.root = ring_nodes.root
    JOIN builds ON builds.id = placed_builds.build
    WHERE ring_nodes.pool = :pool AND builds.status IN {_BUSY}
""")
_WITH_LEFTOVERS = sql(f"SELECT {BUILD} FROM {BUILDS} WHERE {WITH_LEFTOVERS}")
_ON = sql(f"""
    SELECT {BUILD} FROM {{n: root str}} JOIN placed_builds ON placed_builds.root = n.root
    JOIN builds ON builds.id = placed_builds.build WHERE builds.status IN {_BUSY}
""")


async def renew(tx: Transaction, asked: LeaseAsked, now: float) -> RingMember | None:
    """Extend an agent's lease and return the agent's record; None if the lease has ended, or if the agent's
    process has restarted since it got the lease.
    """
    rows = await _RENEW(
        tx, agent=asked.agent, pool=asked.pool, run=asked.run, epoch=asked.epoch, seen=asked.seen, now=now
    )
    return _member(rows)


async def join(
    tx: Transaction, asked: LeaseAsked, before: RingMember | None, lease: float, now: float
) -> RingMember | None:
    """Store a new lease of `lease` seconds and return the agent's record; None if another process has changed
    the record since it was read as `before`.
    """
    given: dict[str, Any] = {"agent": asked.agent, "pool": asked.pool, "run": asked.run, "now": now}
    seen = (before.epoch, before.beat) if before is not None else (-1, -1)
    return _member(await _JOIN(tx, **given, lease=lease, epoch=seen[0], beat=seen[1]))


async def members(tx: Transaction, pool: str = "") -> list[RingMember]:
    """Return the records of the agents that share the nodes of a pool; with "", of all pools."""
    return [convert(row, RingMember) for row in await _MEMBERS(tx, pool=pool)]


async def lock(tx: Transaction, pool: str) -> int:
    """Lock the bare-metal nodes of a pool in the database until the transaction ends; return the pool's
    version, a counter of changes of its nodes.
    """
    version: int = (await _LOCK(tx, pool=pool))[0]["version"]
    return version


async def version(tx: Transaction, pool: str) -> int:
    rows = await _VERSION(tx, pool=pool)
    return rows[0]["version"] if rows else 0


async def nodes(tx: Transaction, pool: str) -> list[RingNode]:
    return [convert(row, RingNode) for row in await _NODES(tx, pool=pool)]


async def changed(tx: Transaction, pool: str, agent: str, seen: int, most: int) -> tuple[list[NodeLent], int]:
    """Return up to `most` nodes of a pool that changed after version `seen`, and the last version that the
    returned nodes cover. A node on which the agent may not act has the epoch 0. If `seen` is 0, return only
    nodes of the agent.
    """
    rows = await _CHANGED(tx, pool=pool, agent=agent, seen=seen, most=most)
    lent = [
        NodeLent(row["root"], row["epoch"] if row["owner"] == agent and not row["leaving"] else 0)
        for row in rows
    ]
    return lent, rows[-1]["version"] if rows else seen


async def owners(tx: Transaction, roots: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return, by root provider, the owning agent and the epoch; root providers that are no nodes of a pool
    are left out.
    """
    rows = await _OWNERS(tx, [(root,) for root in roots])
    return {root: (owner, epoch) for root, owner, epoch in rows}


async def add(tx: Transaction, pool: str, roots: Iterable[str]) -> int:
    return len(await _ADD(tx, [(root, pool) for root in sorted(roots)]))


async def save(tx: Transaction, pool: str, version: int, changed: Sequence[RingNode]) -> None:
    """Store changed nodes with the versions `version` + 1, `version` + 2, and so on, and the last of these as
    the version of the pool. `version` is the pool's present version. The caller has locked the pool.
    """
    values = [
        (node.root, node.owner, node.epoch, version + number, node.leaving, node.to)
        for number, node in enumerate(changed, 1)
    ]
    await _SAVE(tx, values)
    await _COUNT_ON(tx, pool=pool, version=version + len(values))


async def uses(tx: Transaction, pool: str) -> dict[str, Use]:
    """Return, by root provider, the use of each node that is not free: `held` by a build, or `ending` until a
    guest is destroyed.
    """
    found: dict[str, Use] = {}
    for build in StoredForm().readable(await _WITH_LEFTOVERS(tx)):
        for leftover in build.leftovers:
            if not leftover.is_destroyed:
                found[build.hosts[leftover.at].root] = "ending"
    for row in await _IN_USE(tx, pool=pool):
        if row["status"] != "deleting":
            found[row["root"]] = "held"
        else:
            found.setdefault(row["root"], "ending")
    return found


async def builds_on(tx: Transaction, roots: Collection[str], form: StoredForm) -> list[Build]:
    """Return the builds with a guest, or a guest left behind, on the given root providers."""
    builds = {build.id: build for build in form.readable(await _ON(tx, [(root,) for root in roots]))}
    for build in form.readable(await _WITH_LEFTOVERS(tx)):
        if any(build.hosts[leftover.at].root in roots for leftover in build.leftovers):
            builds[build.id] = build
    return list(builds.values())


def _member(rows: Sequence[Mapping[str, Any]]) -> RingMember | None:
    return convert(rows[0], RingMember) if rows else None


def convert(row: Mapping[str, Any], to: type[T]) -> T:
    return msgspec.convert({name: row[name] for name in to.__struct_fields__}, to, strict=False)
