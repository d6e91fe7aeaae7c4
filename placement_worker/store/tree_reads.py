"""SQL that reads whole provider trees, with or without locks, with one statement for many trees.

Every writer locks hosts by root, then providers by id, then the change number.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from bus.messages import InventoryReported
from bus.replication import ProviderChange
from bus.sql.failures import Conflict
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from placement_worker.core.trees import ProviderState, Reported, Tree
from placement_worker.store import provider_parts
from placement_worker.store.changes import LAST_CHANGE, NAMES_EDITION
from placement_worker.store.hosts import owned
from placement_worker.store.numbered_names import Book, NumberedNames

# Roots of trees in which one more unit of a withheld amount could be released.
MAY_OPEN = sql("""
    SELECT DISTINCT r.uuid
    FROM (
        SELECT w.root
        FROM (
            SELECT DISTINCT p.root_provider_id AS root, i.resource_class_id AS class
            FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id
            WHERE i.withheld > 0
        ) w
        JOIN resource_providers p ON p.root_provider_id = w.root
        JOIN inventories i ON i.resource_provider_id = p.id AND i.resource_class_id = w.class
        GROUP BY w.root, w.class
        HAVING SUM(i.withheld * i.allocation_ratio) >=
            SUM(
                CASE WHEN i.used > (i.total - i.reserved) * i.allocation_ratio
                THEN i.used - (i.total - i.reserved) * i.allocation_ratio ELSE 0 END
            ) + MIN(CASE WHEN i.withheld > 0 THEN i.allocation_ratio END)
    ) o
    JOIN resource_providers r ON r.id = o.root
""")
_ROOTS = sql("""
    SELECT id, uuid FROM resource_providers
    WHERE parent_provider_id IS NULL AND id > :after ORDER BY id LIMIT :most
""")
_LOCK_TREES = sql("""
    SELECT p.id
    FROM {n: uuid str} JOIN resource_providers o ON o.uuid = n.uuid
    JOIN resource_providers p ON p.root_provider_id = o.root_provider_id
    ORDER BY p.id FOR NO KEY UPDATE OF p
""")
# All data of the trees that contain the given providers, one row per provider.
_READ = sql(f"""
    SELECT p.id, p.uuid, p.name, p.parent_provider_id, p.root_provider_id, p.generation, p.shape, p.reported,
        {provider_parts.INVENTORIES} AS inventories, {provider_parts.TRAITS} AS traits,
        {provider_parts.AGGREGATES} AS aggregates,
        h.host, h.cell, h.agent, h.zone, h.sequence, h.gone, h.labels,
        (SELECT number FROM changes WHERE id = {LAST_CHANGE}) AS last_change,
        (SELECT number FROM changes WHERE id = {NAMES_EDITION}) AS edition
    FROM resource_providers p LEFT JOIN hosts h ON h.root = p.uuid
    WHERE p.root_provider_id IN (
        SELECT o.root_provider_id FROM {{n: uuid str}} JOIN resource_providers o ON o.uuid = n.uuid
    )
""")
# Data outside of the trees: owners of roots, counters, and the providers that use given ids and names.
_FIND = sql("""
    SELECT 'host' AS kind, h.root AS id, h.host, h.cell, h.agent, h.zone, h.sequence,
        CASE WHEN h.gone THEN 1 ELSE 0 END AS gone, h.labels, 0 AS counter
    FROM {n: uuid str, called str} JOIN hosts h ON h.root = n.uuid
    UNION ALL SELECT 'counter', '', '', '', '', '', c.number, 0, '', c.id FROM changes c
    UNION ALL SELECT 'id', p.uuid, '', '', '', '', 0, 0, '', 0
    FROM {n} JOIN resource_providers p ON p.uuid = n.uuid
    UNION ALL SELECT 'name', p.uuid, p.name, '', '', '', 0, 0, '', 0
    FROM {n} JOIN resource_providers p ON p.name = n.called
""")
_LOCK_ATTEMPTS = 3

_FOREIGN = sql("""
    SELECT p.uuid, r.uuid AS root
    FROM {n: uuid str} JOIN resource_providers p ON p.uuid = n.uuid
    JOIN resource_providers r ON r.id = p.root_provider_id
""")
_NAMED = sql("""
    SELECT p.name, p.uuid, COALESCE(h.cell, '') AS cell
    FROM {n: called str} JOIN resource_providers p ON p.name = n.called
    JOIN resource_providers r ON r.id = p.root_provider_id
    LEFT JOIN hosts h ON h.root = r.uuid
""")


async def lock(tx: Transaction, providers: Collection[str]) -> set[int]:
    """Lock all providers of the trees that contain the given providers; return their database ids."""
    return {id_ for (id_,) in await _LOCK_TREES(tx, [(uuid,) for uuid in providers])}


async def roots_after(tx: Transaction, after: int, most: int) -> list[tuple[int, str]]:
    return [(id_, uuid) for id_, uuid in await _ROOTS(tx, after=after, most=most)]


async def load(tx: Transaction, book: Book, roots: Collection[str]) -> dict[str, Tree]:
    """Return the provider trees of the given roots; an unknown root has a tree without providers."""
    found = await read(tx, book, roots)
    return {root: found.get(root) or Tree(root) for root in roots}


async def read_locked(tx: Transaction, book: Book, providers: Collection[str]) -> dict[str, Tree]:
    """Lock and return the whole trees that contain the given providers, as a mapping of root to tree."""
    return (await read_locked_at(tx, book, providers))[0]


async def read_locked_at(
    tx: Transaction, book: Book, providers: Collection[str]
) -> tuple[dict[str, Tree], int]:
    """Lock the trees that contain the given providers, and return a mapping of roots to trees. Also return
    the last change number of placement, or 0 if there is no tree.
    """
    if tx.dialect == "sqlite" or not providers:  # on SQLite the transaction has locked the whole database
        return await read_at(tx, book, providers)
    for _ in range(_LOCK_ATTEMPTS):
        locked = await lock(tx, providers)
        found, number = await read_at(tx, book, providers)
        if all(provider.id in locked for tree in found.values() for provider in tree.providers):
            return found, number
    raise Conflict("a tree grew or moved whenever it was being locked")


async def read(tx: Transaction, book: Book, providers: Collection[str]) -> dict[str, Tree]:
    """Return a mapping of roots to the whole trees that contain the given providers, without locking them."""
    return (await read_at(tx, book, providers))[0]


async def read_at(tx: Transaction, book: Book, providers: Collection[str]) -> tuple[dict[str, Tree], int]:
    """Return a mapping of roots to the whole trees that contain the given providers. Also return the last
    change number of placement, or 0 if there is no tree."""
    rows = await _READ(tx, [(uuid,) for uuid in providers]) if providers else ()
    if not rows:
        return {}, 0
    decoded = await with_stocks(tx, book, rows)
    traits = await _names_by_column(tx, book.traits, {row["traits"] for row in rows})
    aggregates = await _names_by_column(tx, book.aggregates, {row["aggregates"] for row in rows})
    uuids = {row["id"]: row["uuid"] for row in rows}
    hosts: dict[str, Tree] = {}
    states: dict[str, list[ProviderState]] = {}
    for row, stocks in decoded:
        uuid, parent = row["uuid"], row["parent_provider_id"]
        all_traits, reported_traits = traits[row["traits"]]
        all_aggregates, reported_aggregates = aggregates[row["aggregates"]]
        state = ProviderState(
            row["id"],
            uuid,
            row["name"],
            None if parent is None else uuids[parent],
            row["generation"],
            row["shape"],
            stocks.inventories,
            stocks.used,
            all_traits,
            all_aggregates,
            Reported(bool(row["reported"]), frozenset(stocks.reported), reported_traits, reported_aggregates),
            stocks.withheld,
        )
        members = states.setdefault(uuids[row["root_provider_id"]], [])
        members.insert(0 if parent is None else len(members), state)
        if parent is None and row["host"] is not None:
            hosts[uuid] = owned(uuid, row)
    found = {
        root: replace(hosts.get(root) or Tree(root), providers=tuple(members))
        for root, members in states.items()
    }
    return found, rows[0]["last_change"]


async def with_stocks(
    tx: Transaction, book: Book, rows: Sequence[Any]
) -> list[tuple[Any, provider_parts.Stocks]]:
    """Return database rows of providers, sorted by id, each with its inventories; renew the cached names of
    resource classes and traits if outdated. The rows are sorted here, because with ORDER BY PostgreSQL may
    read all providers to return a few."""
    rows = sorted(rows, key=itemgetter("id"))
    await book.turn_to(tx, rows[0]["edition"])
    stored = [provider_parts.stored_inventories(row["inventories"]) for row in rows]
    classes = await book.class_names(tx, {each.class_id for some in stored for each in some})
    return [(row, provider_parts.stocks_of(some, classes)) for row, some in zip(rows, stored, strict=True)]


async def _names_by_column(
    tx: Transaction, names: NumberedNames, columns: Collection[str | None]
) -> dict[str | None, tuple[tuple[str, ...], frozenset[str]]]:
    await read_unknown(tx, names, columns)
    found = {}
    for column in columns:
        stored = provider_parts.stored_names(column)
        reported = frozenset(names.names[id_] for id_ in stored.reported or ())
        found[column] = tuple(sorted(names.names[id_] for id_ in stored.all)), reported
    return found


async def read_unknown(tx: Transaction, names: NumberedNames, columns: Collection[str | None]) -> None:
    """Read all names of traits or aggregates again if the JSON columns of providers contain an id that is not
    cached.
    """
    if any(id_ not in names.names for column in columns for id_ in provider_parts.stored_names(column).all):
        await names.read_all(tx)


@dataclass(slots=True)
class TreesNamed:
    """Data that edits need in addition to provider trees: the owner of each tree, the number of the last
    change, and which provider ids and names are in use.
    """

    owned: dict[str, Tree]  # root → a Tree with the owner, but without providers
    number: int  # last change number
    ids: set[str]  # ids of existing providers
    names: dict[str, str]  # name → uuid of the existing provider with this name


async def find(
    tx: Transaction, book: Book, providers: Collection[str] = (), names: Collection[str] = ()
) -> TreesNamed:
    found = TreesNamed({}, 0, set(), {})
    rows = await _FIND(tx, zip_longest(providers, names))
    for row in rows:
        if row["kind"] == "host":
            found.owned[row["id"]] = owned(row["id"], row)
        elif row["kind"] == "id":
            found.ids.add(row["id"])
        elif row["kind"] == "name":
            found.names[row["host"]] = row["id"]
        elif row["counter"] == LAST_CHANGE:
            found.number = row["sequence"]
        elif row["counter"] == NAMES_EDITION:
            await book.turn_to(tx, row["sequence"])
    return found


Judged = tuple[Tree, InventoryReported, Tree]  # tree before the report, report, tree after it


async def names_taken(tx: Transaction, names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return, for each given name that a provider has, the uuid and the cell of this provider."""
    if not names:
        return {}
    return {name: (uuid, cell) for name, uuid, cell in await _NAMED(tx, [(name,) for name in names])}


def new_names(pairs: Iterable[Judged]) -> set[str]:
    """Return the new names of providers that agents' reports create or rename. `pairs`: the tree before, the
    report, and the tree after.
    """
    found: set[str] = set()
    for before, _, after in pairs:
        old = {provider.uuid: provider.name for provider in before.providers}
        found.update(provider.name for provider in after.providers if old.get(provider.uuid) != provider.name)
    return found


async def clashes(tx: Transaction, pairs: Sequence[Judged], owners: dict[str, str]) -> dict[str, str]:
    """Return a mapping of root to the reason why an agent's report is refused: another tree's provider has
    the same id or name. `owners` maps names in use to provider ids; names of accepted reports are added.
    """
    new_ids: set[str] = set()
    for before, _, after in pairs:
        new_ids.update(
            {provider.uuid for provider in after.providers} - {provider.uuid for provider in before.providers}
        )
    added_names = new_names(pairs)
    homes = dict(await _FOREIGN(tx, [(uuid,) for uuid in new_ids])) if new_ids else {}
    found = {}
    for before, report, after in pairs:
        if report.gone:
            continue
        provider_ids = {provider.uuid for provider in before.providers}
        bears = {provider.name: provider.uuid for provider in after.providers}  # kept names come last
        for position, reported in enumerate(report.providers):
            owner = bears[reported.name]
            if owner == reported.id and owners.get(reported.name, reported.id) not in provider_ids:
                owner = owners.get(reported.name, reported.id)
            if (home := homes.get(reported.id, after.root)) != after.root:
                found[after.root] = f"providers[{position}].id: {reported.id} belongs to the tree of {home}"
            elif owner != reported.id:
                found[after.root] = (
                    f"providers[{position}].name: {reported.name!r} is the name of provider {owner}"
                )
        if after.root not in found:  # accepted: later reports cannot use its names and ids
            homes.update(dict.fromkeys(new_ids & set(bears.values()), after.root))
            owners.update((name, bears[name]) for name in added_names & bears.keys())
    return found


def changes_between(pairs: Sequence[tuple[Tree, Tree]]) -> list[ProviderChange]:
    """Return a log entry for each provider that differs between old and new trees, deletions first."""
    left, changed = [], []
    for before, after in pairs:
        old = {provider.uuid: provider for provider in before.providers}
        for provider in after.providers:
            if old.pop(provider.uuid, None) != provider:
                changed.append(_change(provider, after, provider.used))
        left += [_change(provider, after, {}, deleted=True) for provider in old.values()]
    return left + changed


def _change(
    state: ProviderState, tree: Tree, used: dict[str, int], *, deleted: bool = False
) -> ProviderChange:
    return ProviderChange(
        state.uuid, tree.root, state.generation, used, reshaped=True, gone=deleted, sequence=tree.sequence
    )


async def homes(tx: Transaction, providers: Collection[str]) -> dict[str, str]:
    return dict(await _FOREIGN(tx, [(uuid,) for uuid in providers]))
