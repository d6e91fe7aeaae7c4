"""SQL that reads the inventories, traits and aggregates of a provider `p`, each as one JSON column."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import zip_longest
from math import isnan
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from bus.messages import InventoryReported
from bus.replication import ProviderChange
from bus.reports import Inventory
from bus.resources import Inventories
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement, Statement, Transaction, sql
from bus.vocabulary import MAX_INT, MAX_RATIO
from placement_worker.core.trees import ProviderState, Reported, Tree
from placement_worker.store.changes import LAST_CHANGE, NAMES_EDITION
from placement_worker.store.hosts import owned
from placement_worker.store.numbered_names import Book, NumberedNames

# SQL that reads the inventories, traits and aggregates of a provider `p`, each as one JSON column.


INVENTORIES = """(
    SELECT CAST(json_agg(json_build_object(
        'class_id', i.resource_class_id, 'total', i.total, 'reserved', i.reserved, 'min_unit', i.min_unit,
        'max_unit', i.max_unit, 'step_size', i.step_size, 'allocation_ratio', EXACTLY(i.allocation_ratio),
        'used', i.used, 'withheld', i.withheld, 'reported', CASE WHEN i.reported THEN 1 ELSE 0 END
    )) AS text)
    FROM inventories i WHERE i.resource_provider_id = p.id
)"""


def _numbers(table: str, column: str) -> str:
    return f"""(
        SELECT CAST(json_build_object(
            'reported', json_agg(t.{column}) FILTER (WHERE t.reported),
            'unreported', json_agg(t.{column}) FILTER (WHERE NOT t.reported)
        ) AS text)
        FROM {table} t WHERE t.resource_provider_id = p.id
    )"""


TRAITS = _numbers("resource_provider_traits", "trait_id")
AGGREGATES = _numbers("resource_provider_aggregates", "aggregate_id")


class StoredInventory(msgspec.Struct, frozen=True):
    """An inventory as the column `inventories` of a provider stores it."""

    class_id: int
    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: str  # a text, so that no digit is lost
    used: int
    withheld: int
    reported: int  # 1: added by a report of the agent; 0: by an operator


class StoredNames(msgspec.Struct, frozen=True):
    """The ids of a provider's traits or aggregates, in two lists: added by its agent, or by operators."""

    reported: tuple[int, ...] | None = None  # added by a report of the agent
    unreported: tuple[int, ...] | None = None  # added by an operator

    @property
    def all(self) -> tuple[int, ...]:
        """Return the ids of all names, reported by the agent or added by others."""
        return (*(self.reported or ()), *(self.unreported or ()))


class Stocks(NamedTuple):
    """A provider's inventories by resource class, with usage, withheld amounts, and the resource classes that
    agents reported."""

    inventories: Inventories
    used: dict[str, int]
    withheld: dict[str, int]
    reported: list[str]


_decode_inventories = msgspec.json.Decoder(tuple[StoredInventory, ...]).decode
_decode_names = msgspec.json.Decoder(StoredNames).decode


def stored_inventories(column: str | None) -> tuple[StoredInventory, ...]:
    return _decode_inventories(column) if column else ()


@cache
def stored_names(column: str | None) -> StoredNames:
    """Decode the JSON column of a provider's traits or aggregates; cached, as most hosts have the same."""
    return _decode_names(column) if column else StoredNames()


def stocks_of(rows: Iterable[StoredInventory], classes: Mapping[int, str]) -> Stocks:
    """Return stored inventories with names of classes, and their used and withheld amounts."""
    found = Stocks({}, {}, {}, [])
    for row in rows:
        name = classes[row.class_id]
        found.inventories[name] = _inventory(
            row.total, row.reserved, row.min_unit, row.max_unit, row.step_size, row.allocation_ratio
        )
        found.used[name] = row.used
        if row.withheld:
            found.withheld[name] = row.withheld
        if row.reported:
            found.reported.append(name)
    return found


@lru_cache(maxsize=20_000)
def _inventory(
    total: int, reserved: int, min_unit: int, max_unit: int, step_size: int, allocation_ratio: str
) -> Inventory:
    ratio = float(allocation_ratio)
    return Inventory(
        total=_within(total, 0),
        reserved=_within(reserved, 0),
        min_unit=_within(min_unit, 1),
        max_unit=_within(max_unit, 1),
        step_size=_within(step_size, 1),
        allocation_ratio=0.0 if isnan(ratio) else max(-MAX_RATIO, min(ratio, MAX_RATIO)),
    )


def _within(amount: int, least: int) -> int:
    """Return an amount within the limits of its column."""
    return max(least, min(amount, MAX_INT))


# SQL that reads whole provider trees, with or without locks, with one statement for many trees.
#
# Every writer locks hosts by root, then providers by id, then the change number.


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
        {INVENTORIES} AS inventories, {TRAITS} AS traits,
        {AGGREGATES} AS aggregates,
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
    """Return a page of root providers, in the order of their row ids."""
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


async def with_stocks(tx: Transaction, book: Book, rows: Sequence[Any]) -> list[tuple[Any, Stocks]]:
    """Return database rows of providers, sorted by id, each with its inventories; renew the cached names of
    resource classes and traits if outdated. The rows are sorted here, because with ORDER BY PostgreSQL may
    read all providers to return a few."""
    rows = sorted(rows, key=itemgetter("id"))
    await book.turn_to(tx, rows[0]["edition"])
    stored = [stored_inventories(row["inventories"]) for row in rows]
    classes = await book.class_names(tx, {each.class_id for some in stored for each in some})
    return [(row, stocks_of(some, classes)) for row, some in zip(rows, stored, strict=True)]


async def _names_by_column(
    tx: Transaction, names: NumberedNames, columns: Collection[str | None]
) -> dict[str | None, tuple[tuple[str, ...], frozenset[str]]]:
    await read_unknown(tx, names, columns)
    found = {}
    for column in columns:
        stored = stored_names(column)
        reported = frozenset(names.names[id_] for id_ in stored.reported or ())
        found[column] = tuple(sorted(names.names[id_] for id_ in stored.all)), reported
    return found


async def read_unknown(tx: Transaction, names: NumberedNames, columns: Collection[str | None]) -> None:
    """Read all names of traits or aggregates again if the JSON columns of providers contain an id that is not
    cached.
    """
    if any(id_ not in names.names for column in columns for id_ in stored_names(column).all):
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
    """Return the owners of these providers and names, and the number of the last change."""
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
    """Return the root of each of these providers."""
    return dict(await _FOREIGN(tx, [(uuid,) for uuid in providers]))


# SQL that stores changed provider trees: only the differences.


_INSERT_PROVIDERS = sql("""
    INSERT INTO resource_providers (id, uuid, name, generation, shape, parent_provider_id, root_provider_id,
    reported, created_at, updated_at)
    SELECT n.id, n.uuid, n.called, n.generation, n.shape, n.parent, n.root, n.reported,
    :NOW, :NOW
    FROM {n: id int, uuid str, called str, generation int, shape int, parent int, root int, reported bool}
""")
_SET_PARENTS = sql("""
    UPDATE resource_providers SET parent_provider_id = n.parent, root_provider_id = n.root,
    reported = n.reported, updated_at = :NOW FROM {n: id int, parent int, root int, reported bool} WHERE
    resource_providers.id = n.id
""")
_SET_PROVIDERS = sql("""
    UPDATE resource_providers SET generation = n.generation, shape = n.shape, updated_at = :NOW
    FROM {n: id int, generation int, shape int} WHERE resource_providers.id = n.id
""")
_NAMES = """
    UPDATE resource_providers SET name = n.called, updated_at = :NOW FROM {n: id int, called str}
    WHERE resource_providers.id = n.id
"""
_FREE_NAMES, _SET_NAMES = sql(_NAMES), sql(_NAMES)
_DELETE_PROVIDERS = sql("DELETE FROM resource_providers WHERE id IN (SELECT n.id FROM {n: id int})")
_INVENTORY = """
    {n: provider int, class int, total int, reserved int, least int, most int, step int, ratio float,
    withheld int, reported bool}
"""
_INSERT_INVENTORIES = sql(f"""
    INSERT INTO inventories (resource_provider_id, resource_class_id, total, reserved, min_unit, max_unit,
    step_size, allocation_ratio, used, withheld, reported, created_at, updated_at)
    SELECT n.provider, n.class, n.total, n.reserved, n.least, n.most, n.step, n.ratio, 0, n.withheld,
    n.reported, :NOW, :NOW FROM {_INVENTORY}
""")
_SET_INVENTORIES = sql(f"""
    UPDATE inventories SET total = n.total, reserved = n.reserved, min_unit = n.least, max_unit = n.most,
    step_size = n.step, allocation_ratio = n.ratio, withheld = n.withheld, reported = n.reported,
    used_when_set = inventories.used, updated_at = :NOW FROM {_INVENTORY}
    WHERE inventories.resource_provider_id = n.provider AND inventories.resource_class_id = n.class
""")
_DELETE_INVENTORIES = sql("""
    DELETE FROM inventories WHERE EXISTS (SELECT 1 FROM {n: provider int, class int}
    WHERE n.provider = inventories.resource_provider_id AND n.class = inventories.resource_class_id)
""")


def _insert_pairs(table: str, column: str) -> Statement:
    return sql(f"""
        INSERT INTO {table} (resource_provider_id, {column}, reported, created_at, updated_at)
        SELECT n.provider, n.other, n.reported, :NOW, :NOW FROM {{n: provider int, other int, reported bool}}
    """)


def _delete_pairs(table: str, column: str) -> Statement:
    return sql(f"""
        DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {{n: provider int, other int}}
        WHERE n.provider = {table}.resource_provider_id AND n.other = {table}.{column})
    """)


_INSERT_TRAITS = _insert_pairs("resource_provider_traits", "trait_id")
_DELETE_TRAITS = _delete_pairs("resource_provider_traits", "trait_id")
_INSERT_AGGREGATES = _insert_pairs("resource_provider_aggregates", "aggregate_id")
_DELETE_AGGREGATES = _delete_pairs("resource_provider_aggregates", "aggregate_id")
# Only changes who added an aggregate: an operator has added one that the agent's reports already contain.
_SET_AGGREGATE_OWNERS = sql("""
    UPDATE resource_provider_aggregates SET reported = n.reported, updated_at = :NOW
    FROM {n: provider int, other int, reported bool}
    WHERE resource_provider_aggregates.resource_provider_id = n.provider
    AND resource_provider_aggregates.aggregate_id = n.other
""")

_GOING = (_DELETE_INVENTORIES, _DELETE_TRAITS, _DELETE_AGGREGATES, _FREE_NAMES)  # first: free unique keys
_MOVES = (_SET_PARENTS, _DELETE_PROVIDERS, _SET_NAMES)
_LAST = (_SET_PROVIDERS, _SET_INVENTORIES, _INSERT_TRAITS, _INSERT_AGGREGATES, _SET_AGGREGATE_OWNERS)

_Rows = defaultdict[Statement, list[tuple[Any, ...]]]

NONE_NEW: Iterator[int] = iter(())
_NEVER = ProviderState(0, "", "", None, 0, 0, {}, {}, (), ())


def writes_between(
    book: Book, pairs: Sequence[tuple[Tree, Tree]], now: float, numbers: Iterator[int] = NONE_NEW
) -> tuple[list[BoundStatement], list[BoundStatement]]:
    """Return two lists of SQL statements that change stored provider trees into new trees.

    Execute the first list one by one. The second list may share a round trip with the insertion into the
    change log. `numbers` yields the database ids of new providers.
    """
    old = {provider.uuid: (provider, before.root) for before, _ in pairs for provider in before.providers}
    ids = {uuid: provider.id for uuid, (provider, _) in old.items()}
    # provider before, provider after (None: deleted), its root, whether it moved to another tree
    steps: list[tuple[ProviderState, ProviderState | None, str, bool]] = []
    for _, after in pairs:
        for provider in after.providers:
            was, root = old.pop(provider.uuid, (_NEVER, ""))
            if was != provider or root != after.root:
                steps.append((was, provider, after.root, root != after.root))
    steps += [(was, None, "", False) for was, _ in old.values()]
    ids.update((then.uuid, next(numbers)) for was, then, _, _ in steps if then and was is _NEVER)
    rows: _Rows = defaultdict(list)
    # Free a name first if another provider gets it: the unique key is checked for each updated row.
    wanted = {then.name for was, then, _, _ in steps if then is not None and was.name != then.name}
    for was, then, root, moved in steps:
        if was is not _NEVER and was.name in wanted:
            rows[_FREE_NAMES].append((was.id, was.uuid))
        if then is None:
            rows[_DELETE_PROVIDERS].append((was.id,))
        else:
            parent = ids[then.parent] if then.parent else None
            _add_provider(rows, was, then, (parent, ids[root], then.reported.provider), ids, moved)
        _add_contents(rows, book, was, then or _NEVER, ids[then.uuid] if then else 0)

    def bound(*statements: Statement) -> list[BoundStatement]:
        return [statement.of(rows[statement], now=now) for statement in statements if rows[statement]]

    first, made, moves = bound(*_GOING), bound(_INSERT_PROVIDERS), bound(*_MOVES)
    stocks, last = bound(_INSERT_INVENTORIES), bound(*_LAST)
    if first or moves:  # these refer to new providers or change the same rows, so they need an order
        return [*first, *made, *moves, *stocks], last
    if stocks:  # may wait for a rename of the class, so execute it before the change number is taken
        return [*made, *stocks], last
    return [], [*made, *last]


def _add_provider(
    rows: _Rows,
    was: ProviderState,
    then: ProviderState,
    link: tuple[int | None, int, bool],
    ids: Mapping[str, int],
    moved: bool,
) -> None:
    if was is _NEVER:
        row = (ids[then.uuid], then.uuid, then.name, then.generation, then.shape, *link)
        rows[_INSERT_PROVIDERS].append(row)
        return
    if moved or was.parent != then.parent:
        rows[_SET_PARENTS].append((then.id, *link))
    if was.name != then.name:
        rows[_SET_NAMES].append((then.id, then.name))
    if (was.generation, was.shape) != (then.generation, then.shape):
        rows[_SET_PROVIDERS].append((then.id, then.generation, then.shape))


def _add_contents(rows: _Rows, book: Book, was: ProviderState, then: ProviderState, id_: int) -> None:
    put, classes, aggregates = then.reported, book.classes.ids, book.aggregates.ids
    rows[_DELETE_INVENTORIES] += [
        (was.id, classes[name]) for name in was.inventories if name not in then.inventories
    ]
    for name, inventory in then.inventories.items():
        before, reported = was.inventories.get(name), name in put.classes
        if (
            before != inventory
            or was.withheld.get(name) != then.withheld.get(name)
            or (name in was.reported.classes) != reported
        ):
            row = (id_, classes[name], *astuple(inventory), then.withheld.get(name, 0), reported)
            rows[_INSERT_INVENTORIES if before is None else _SET_INVENTORIES].append(row)
    for ids, old, new, by_reports, delete, insert in (
        (book.traits.ids, was.traits, then.traits, put.traits, _DELETE_TRAITS, _INSERT_TRAITS),
        (aggregates, was.aggregates, then.aggregates, put.aggregates, _DELETE_AGGREGATES, _INSERT_AGGREGATES),
    ):
        if old != new:
            rows[delete] += [(was.id, ids[name]) for name in sorted(set(old) - set(new))]
            rows[insert] += [(id_, ids[name], name in by_reports) for name in sorted(set(new) - set(old))]
    if was.reported.aggregates != put.aggregates:
        rows[_SET_AGGREGATE_OWNERS] += [
            (id_, aggregates[uuid], uuid in put.aggregates)
            for uuid in sorted(set(was.aggregates) & set(then.aggregates))
            if (uuid in was.reported.aggregates) != (uuid in put.aggregates)
        ]
