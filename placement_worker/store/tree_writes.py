"""SQL that stores changed provider trees (only the differences), and reshapes, which move inventory with its
allocations in one transaction.

A reshape that an agent reports locks the providers, but not the consumers. A concurrent claim that read the
old allocations detects the changed shape of their providers, and is retried (see claims.open_world).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from msgspec.structs import astuple

from bus.claims import HOLDER_TYPES, Claimed, ClaimRequested
from bus.history import ConsumerChange
from bus.replication import ProviderChange
from bus.resources import Denied, EditResult, Reshape
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement, Statement, sql
from bus.sql.transaction import Transaction
from placement_worker.core import capacity, edits
from placement_worker.core.claim_world import ClaimedProvider, ClaimWorld, Stock, changed_consumers
from placement_worker.core.reshape import MovedHolder, TreeHolder
from placement_worker.core.trees import KnownNames, ProviderState, Tree, WorkingTrees
from placement_worker.store import claims, tree_reads
from placement_worker.store.numbered_names import Book

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


class Undone(Exception):
    """The error that a reshape is not possible; its transaction must be rolled back."""

    def __init__(self, why: EditResult) -> None:
        super().__init__(str(why))
        self.why = why


_Consumers = Sequence[ConsumerChange]
Reshaped = tuple[Sequence[ProviderChange], Mapping[str, Tree], Sequence[BoundStatement], _Consumers]


async def reshape(tx: Transaction, book: Book, known: KnownNames, order: Reshape, now: float) -> Reshaped:
    """Store a reshape: add the new inventories, move the allocations, remove the old inventories.

    Return the rows for the change log, the changed provider trees, the SQL statements still to execute, and
    the changed consumers. Raise Undone if the reshape or one of its claims is refused.
    """
    world, working = await _open(tx, book, order, now)
    if (refusal := edits.widen(order, working, known)) is not None:
        raise Undone(refusal)
    claimed_providers = world.providers
    for inventory in order.inventories:
        _refit(claimed_providers[inventory.provider], working, inventory.provider, known)
    results = capacity.claim(ClaimRequested(claims=order.claims), world) if order.claims else ()
    if results is None:
        raise Conflict("a consumer changed while it was being read")
    if not all(isinstance(result, Claimed) for result in results):
        raise Undone(Denied(results=results))
    for uuid, claimed in world.touched.items():
        if uuid in working.homes:
            used = {name: stock.used for name, stock in claimed.stocks.items()}
            working.put(replace(working.there(uuid), used=used, generation=claimed.generation))
    if (in_use := edits.settle(order, working, known)) is not None:
        raise Undone(in_use)
    for uuid, claimed in world.touched.items():
        if uuid in working.homes:
            claimed.generation = working.there(uuid).generation
    pairs = working.changed()
    # Write the trees first: `save_world` updates the used amount in the rows of their inventories.
    for write in chain(*writes_between(book, pairs, now)):
        await write(tx)
    altered, writes = await claims.save_world(tx, book, world, now)
    elsewhere = [change for change in altered if change.provider not in working.homes]
    changes = elsewhere + tree_reads.changes_between(pairs)
    return changes, {then.root: then for _, then in pairs}, writes, changed_consumers(world)


async def _open(tx: Transaction, book: Book, order: Reshape, now: float) -> tuple[ClaimWorld, WorkingTrees]:
    reading = book.reading
    listed = [inventory.provider for inventory in order.inventories]
    before = WorkingTrees(await tree_reads.read(tx, book, listed))
    named = capacity.providers_of([ClaimRequested(claims=order.claims)], all_choices=True)
    scope = claims.claim_scope(order.claims, named | before.homes.keys())
    world = await claims.open_world(tx, book, scope, now)
    working = WorkingTrees(await tree_reads.read(tx, book, listed))
    if any(world.providers.get(uuid) is None for uuid in working.homes):
        raise Conflict("a tree grew while it was being locked")
    if book.reading != reading:
        raise Conflict("a resource class was renamed in between")
    return world, working


def _refit(claimed: ClaimedProvider | None, working: WorkingTrees, provider: str, known: KnownNames) -> None:
    assert claimed is not None  # all providers of the working trees were locked and read
    state = working.there(provider)
    for name, inventory in state.inventories.items():
        used, limits = state.used[name], (inventory.min_unit, inventory.max_unit, inventory.step_size)
        claimed.stocks[name] = Stock(known.classes[name], inventory.capacity, used, used, *limits)
    claimed.generation = claimed.was = state.generation


_HOLDERS = sql("""
    SELECT DISTINCT a.consumer_id AS id FROM {n: uuid str} JOIN resource_providers r ON r.uuid = n.uuid
    JOIN resource_providers p ON p.root_provider_id = r.id
    JOIN allocations a ON a.resource_provider_id = p.id
""")
_HOLDINGS = sql("""
    SELECT c.id, c.uuid, c.generation, c.client, k.name AS type, p.uuid AS provider, r.uuid AS root,
    a.resource_class_id, a.used FROM {n: id int} JOIN consumers c ON c.id = n.id
    JOIN allocations a ON a.consumer_id = c.id JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
""")
_DELETE = sql("""
    DELETE FROM allocations WHERE EXISTS (SELECT 1 FROM {n: consumer int, provider int, class int} WHERE
    n.consumer = allocations.consumer_id AND n.provider = allocations.resource_provider_id AND n.class =
    allocations.resource_class_id)
""")
# Finds providers by uuid, because the caller does not know the database ids of new providers.
_INSERT = sql("""
    INSERT INTO allocations
    (consumer_id, resource_provider_id, resource_class_id, used, created_at, updated_at)
    SELECT n.consumer, p.id, n.class, n.used, :NOW, :NOW
    FROM {n: consumer int, provider str, class int, used int} JOIN resource_providers p ON p.uuid = n.provider
""")
# Record the usage after the move in `used_when_set`, so that it is permitted even above the capacity.
_SET_USED = sql("""
    UPDATE inventories SET used = n.used, used_when_set = CASE WHEN inventories.used_when_set < n.used
    THEN inventories.used_when_set ELSE n.used END
    FROM {n: provider str, class int, used int} JOIN resource_providers p ON p.uuid = n.provider
    WHERE inventories.resource_provider_id = p.id AND inventories.resource_class_id = n.class
""")


async def read_holders(tx: Transaction, book: Book, root: str) -> list[TreeHolder]:
    """Return the consumers with allocations in a provider tree. The caller has locked its providers."""
    found = [(id_,) for (id_,) in await _HOLDERS(tx, [(root,)])]
    rows = await _HOLDINGS(tx, found) if found else ()
    names = await book.class_names(tx, {row["resource_class_id"] for row in rows})
    holders: dict[int, TreeHolder] = {}
    for row in rows:
        build = not row["client"] and row["type"] not in HOLDER_TYPES
        holder = holders.setdefault(
            row["id"], TreeHolder(row["id"], row["uuid"], row["generation"], {}, {}, build)
        )
        part = holder.held if row["root"] == root else holder.elsewhere
        part.setdefault(row["provider"], {})[names[row["resource_class_id"]]] = row["used"]
    return sorted(holders.values(), key=lambda holder: holder.uuid)


def holder_writes(
    book: Book, before: Tree, after: Tree, moved: Sequence[MovedHolder], now: float
) -> Iterator[BoundStatement]:
    """Yield the statements that store the allocations which a reshape has moved."""
    if not moved:
        return
    ids = {provider.uuid: provider.id for provider in before.providers}
    classes: Mapping[str, int] = book.classes.ids
    deleted, come = [], []
    for holder in moved:
        was, now_held = _flat(holder.holder.held), _flat(holder.held)
        id_ = holder.holder.id
        deleted += [(id_, ids[at[0]], classes[at[1]]) for at in was if now_held.get(at) != was[at]]
        come += [(id_, at[0], classes[at[1]], size) for at, size in now_held.items() if was.get(at) != size]
    used = {provider.uuid: provider.used for provider in before.providers}
    counted = [
        (provider.uuid, classes[name], amount)
        for provider in after.providers
        for name, amount in provider.used.items()
        if used.get(provider.uuid, {}).get(name, 0) != amount
    ]
    yield _DELETE.of(deleted)
    yield _INSERT.of(come, now=now)
    yield _SET_USED.of(counted)


def _flat(held: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    return {(provider, name): amount for provider, of in held.items() for name, amount in of.items()}
