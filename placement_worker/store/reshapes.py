"""Stores reshapes, which move inventory with its allocations in one transaction: those that a client
requests, and the moved allocations of those that an agent reports.

A reshape that an agent reports locks the providers, but not the consumers. A concurrent claim that read the
old allocations detects the changed shape of their providers, and is retried (see claims.open_world).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from bus.claims import HOLDER_TYPES, Claimed, ClaimRequested
from bus.replication import ConsumerChange
from bus.resources import Denied, EditResult, Reshape
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement, Transaction, sql
from placement_worker.core import capacity, edits
from placement_worker.core.capacity import ClaimedProvider, ClaimWorld, Stock, changed_consumers
from placement_worker.core.reshape import MovedHolder, TreeHolder
from placement_worker.core.trees import KnownNames, Tree, WorkingTrees
from placement_worker.store import claims, stored_trees
from placement_worker.store.changes import CommitRecord
from placement_worker.store.numbered_names import Book


class Undone(Exception):
    """The error that a reshape is not possible; its transaction must be rolled back."""

    def __init__(self, why: EditResult) -> None:
        super().__init__(str(why))
        self.why = why


async def reshape(
    tx: Transaction, book: Book, known: KnownNames, order: Reshape, now: float
) -> tuple[CommitRecord, Sequence[BoundStatement]]:
    """Store a reshape: add the new inventories, move the allocations, remove the old inventories.

    Return the record for the change log, and the SQL statements still to execute. Raise Undone if the reshape
    or one of its claims is refused.
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
    for write in chain(*stored_trees.writes_between(book, pairs, now)):
        await write(tx)
    altered, writes = await claims.save_world(tx, book, world, now)
    elsewhere = [change for change in altered if change.provider not in working.homes]
    record = CommitRecord(
        changes=elsewhere + stored_trees.changes_between(pairs),
        shaped={then.root: then for _, then in pairs},
        consumers=changed_consumers(world),
    )
    return record, writes


async def _open(tx: Transaction, book: Book, order: Reshape, now: float) -> tuple[ClaimWorld, WorkingTrees]:
    """Read and lock the claims and trees of a reshape; raise Conflict if they changed in between."""
    reading = book.reading
    listed = [inventory.provider for inventory in order.inventories]
    before = WorkingTrees(await stored_trees.read(tx, book, listed))
    named = capacity.providers_of([ClaimRequested(claims=order.claims)], all_choices=True)
    scope = claims.claim_scope(order.claims, named | before.homes.keys())
    world = await claims.open_world(tx, book, scope, now)
    working = WorkingTrees(await stored_trees.read(tx, book, listed))
    if any(world.providers.get(uuid) is None for uuid in working.homes):
        raise Conflict("a tree grew while it was being locked")
    if book.reading != reading:
        raise Conflict("a resource class was renamed in between")
    return world, working


def _refit(claimed: ClaimedProvider | None, working: WorkingTrees, provider: str, known: KnownNames) -> None:
    """Give a claimed provider the inventories that the reshape sets."""
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
_ALLOCATIONS = sql("""
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
    rows = await _ALLOCATIONS(tx, found) if found else ()
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


@dataclass(frozen=True)
class MovedAllocations:
    """The allocations that reshapes move: the statements that store them, and their consumers."""

    writes: Sequence[BoundStatement] = ()
    consumers: Sequence[ConsumerChange] = ()


NONE_MOVED = MovedAllocations()


def moved_allocations(
    book: Book, moves: Sequence[tuple[Tree, Tree, Sequence[MovedHolder]]], now: float
) -> MovedAllocations:
    """Return the allocations that reshapes move; `moves`: each tree before and after, with the consumers."""
    return MovedAllocations(
        [write for before, after, some in moves for write in _holder_writes(book, before, after, some, now)],
        [
            ConsumerChange(each.holder.uuid, each.holder.generation, {**each.holder.elsewhere, **each.held})
            for _, _, some in moves
            for each in some
        ],
    )


def _holder_writes(
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
