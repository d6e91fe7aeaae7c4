"""SQL for cells, and for owners of provider trees: one database row per root, which is kept after the tree is
deleted. The rows are locked in the order of their roots, before providers.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from bus.cells import RegisteredCell
from bus.domains import NO_LABELS
from bus.reports import SHARES
from bus.resources import Provider
from bus.sql.statement import BoundStatement, Transaction, sql
from placement_worker.core.cell_limits import CellLimits
from placement_worker.core.labels import as_stored, effective_labels, stored_labels
from placement_worker.core.trees import Tree

# SQL that reads the labels of hosts by level.


IS_SHARING = """
    EXISTS (SELECT 1 FROM resource_provider_traits m JOIN traits t ON t.id = m.trait_id
    WHERE m.resource_provider_id = p.id AND t.name = :shares)
"""
_SHARING = sql(f"""
    SELECT p.uuid FROM {{n: uuid str}} JOIN resource_providers p ON p.uuid = n.uuid WHERE {IS_SHARING}
""")

_LABELS = sql("""
    SELECT n.root, h.cell, h.zone, h.labels FROM {n: root str} LEFT JOIN hosts h ON h.root = n.root
""")
_METADATA = sql("""
    SELECT p.uuid AS root, a.uuid, a.metadata FROM {n: root str}
    JOIN resource_providers p ON p.uuid = n.root
    JOIN resource_provider_aggregates m ON m.resource_provider_id = p.id
    JOIN aggregates a ON a.id = m.aggregate_id
    WHERE a.metadata LIKE '%topology:%' OR a.metadata LIKE '%availability_zone%'
    ORDER BY a.uuid
""")
_decode = msgspec.json.Decoder(dict[str, str]).decode


async def labels_of(tx: Transaction, roots: Collection[str]) -> dict[str, dict[str, str]]:
    """Return, for each of the given hosts, its labels by level, from operators, agents, aggregates and
    Ironic.
    """
    listed = [(root,) for root in sorted(roots)]
    metadata = defaultdict[str, list[dict[str, str]]](list)
    for root, _, text in await _METADATA(tx, listed):
        metadata[root].append(_decode(text))
    found = {}
    for root, cell, zone, text in await _LABELS(tx, listed):
        labels = stored_labels(text) if text else NO_LABELS
        found[root] = effective_labels(labels, cell or "", zone or "", metadata[root])
    return found


async def with_labels(tx: Transaction, found: Sequence[Provider]) -> list[Provider]:
    """Return the same providers, with the labels of their hosts added to root providers."""
    labels = await labels_of(tx, [provider.id for provider in found if provider.parent is None])
    return [structs.replace(provider, labels=labels.get(provider.id, {})) for provider in found]


_ENTER = sql("""
    INSERT INTO hosts (root, cell, agent, host, zone, sequence, gone, labels, created_at, updated_at)
    SELECT n.root, '', '', '', '', -1, false, '', :NOW, :NOW FROM {n: root str} WHERE true ORDER BY n.root
    ON CONFLICT DO NOTHING
""")
_LOCK_HOSTS = sql("""
    SELECT h.root, h.host, h.cell, h.agent, h.zone, h.sequence, h.gone, h.labels FROM {n: root str}
    JOIN hosts h ON h.root = n.root ORDER BY h.root FOR NO KEY UPDATE OF h
""")
_LEAVE = sql(
    "DELETE FROM hosts WHERE sequence = -1 AND labels = '' AND root IN (SELECT n.root FROM {n: root str})"
)
_SET_HOSTS = sql("""
    UPDATE hosts SET cell = n.cell, agent = n.agent, host = n.host, zone = n.zone, sequence = n.sequence,
    gone = n.gone, labels = n.labels, updated_at = :NOW
    FROM {n: root str, cell str, agent str, host str, zone str, sequence int, gone bool, labels str}
    WHERE hosts.root = n.root
""")
PRUNE = sql("""
    DELETE FROM hosts WHERE updated_at < :before
    AND NOT EXISTS (SELECT 1 FROM resource_providers p WHERE p.uuid = hosts.root)
""")
# Roots of trees that agents reported as deleted, and whose providers still exist.
LEFTOVERS = sql("SELECT h.root FROM hosts h JOIN resource_providers p ON p.uuid = h.root WHERE h.gone")


async def enter(tx: Transaction, roots: Collection[str], now: float) -> dict[str, Tree]:
    """Lock the record of each host, inserted if missing. Return a mapping of each root to a `Tree` with the
    host's owner and without providers."""
    listed = [(root,) for root in roots]
    found = await _LOCK_HOSTS(tx, listed)
    if len(found) < len({*roots}):
        await _ENTER(tx, listed, now=now)
        found = await _LOCK_HOSTS(tx, listed)
    return {row["root"]: owned(row["root"], row) for row in found}


def owned(root: str, row: Mapping[str, Any]) -> Tree:
    """Convert a database row with the owner of a root provider to a `Tree` without providers."""
    owner = row["host"], row["cell"], row["agent"], row["zone"], row["sequence"], bool(row["gone"])
    return Tree(root, *owner, labels=stored_labels(row["labels"]))


async def leave(tx: Transaction, roots: Collection[str]) -> None:
    """Delete the records inserted only to lock the given root providers, if the providers still have no
    owner.
    """
    await _LEAVE(tx, [(root,) for root in roots])


def saving(trees: Sequence[Tree], now: float) -> BoundStatement:
    """Return the statement that stores the hosts of these trees: cell, agent, name, zone, sequence and
    labels.
    """
    rows = [
        (
            tree.root,
            tree.cell,
            tree.agent,
            tree.host,
            tree.zone,
            tree.sequence,
            tree.gone,
            as_stored(tree.labels),
        )
        for tree in trees
    ]
    return _SET_HOSTS.of(rows, now=now)


_CELLS = sql("SELECT h.root, h.cell FROM {n: root str} JOIN hosts h ON h.root = n.root")


async def cells_of(tx: Transaction, roots: Collection[str]) -> dict[str, str]:
    """Return the cell of each of these roots that has one."""
    return dict(await _CELLS(tx, [(root,) for root in roots])) if roots else {}


async def limits(tx: Transaction, cell: str, roots: Mapping[str, str]) -> CellLimits:
    """Return the limits for a cell's claims and releases: which providers it may use. `roots` maps each
    provider in the claims and releases to its root provider."""
    cells = await cells_of(tx, dict.fromkeys(roots.values()))
    strangers = [provider for provider, root in roots.items() if not cells.get(root)]
    return CellLimits(cell, cells, await sharing(tx, strangers) if strangers else ())


# Registered cells, and numbers of hosts and instances in cells

_REGISTERED = sql("SELECT c.name, c.enabled, c.note FROM cells c ORDER BY c.name")
# Executed before LOCK_CELL, so that the second of two concurrent registrations sees the first.
ENTER_CELL = sql("""
    INSERT INTO cells (name, enabled, note, created_at, updated_at)
    VALUES (:cell, true, '', :NOW, :NOW) ON CONFLICT DO NOTHING RETURNING name
""")
LOCK_CELL = sql("SELECT c.name, c.enabled, c.note FROM cells c WHERE c.name = :cell FOR UPDATE OF c")
SAVE_CELL = sql("UPDATE cells SET enabled = :enabled, note = :note, updated_at = :NOW WHERE name = :cell")
DROP_CELL = sql("DELETE FROM cells WHERE name = :cell")
# Cell → number of hosts, without deleted hosts that are in use.
HOSTS = sql("""
    SELECT h.cell, count(*) AS hosts FROM hosts h JOIN resource_providers r ON r.uuid = h.root
    WHERE h.cell <> '' AND NOT h.gone GROUP BY h.cell
""")
# Cell → number of consumers with allocations there, including holder consumers.
INSTANCES = sql("""
    SELECT h.cell, count(DISTINCT a.consumer_id) AS instances FROM hosts h
    JOIN resource_providers r ON r.uuid = h.root
    JOIN resource_providers p ON p.root_provider_id = r.id
    JOIN allocations a ON a.resource_provider_id = p.id WHERE h.cell <> '' GROUP BY h.cell
""")
ROOTS_OF_CELL = sql("""
    SELECT h.root FROM hosts h JOIN resource_providers r ON r.uuid = h.root WHERE h.cell = :cell
    AND NOT h.gone ORDER BY h.root
""")


async def registered(tx: Transaction) -> list[RegisteredCell]:
    """Return all registered cells."""
    return [cell_of(row) for row in await _REGISTERED(tx)]


def cell_of(row: Mapping[str, Any]) -> RegisteredCell:
    """Return the cell of a row."""
    return RegisteredCell(name=row["name"], enabled=bool(row["enabled"]), note=row["note"])


async def sharing(tx: Transaction, providers: Iterable[str]) -> set[str]:
    """Return those of the providers that share their inventory, such as storage pools."""
    return {uuid for (uuid,) in await _SHARING(tx, [(uuid,) for uuid in providers], shares=SHARES)}
