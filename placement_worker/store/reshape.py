"""A reshape: inventories go from provider to provider with what is held of them, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bus.claims import Claimed, ClaimRequested
from bus.replication import ProviderChange
from bus.resources import Denied, EditResult, Reshape
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement
from bus.sql.transaction import Transaction
from placement_worker.core import capacity, edits
from placement_worker.core.claim_world import ClaimedProvider, Stock
from placement_worker.core.trees import Tree
from placement_worker.core.working_trees import KnownNames, WorkingTrees
from placement_worker.store import claims, tree_reads
from placement_worker.store.numbered_names import Book
from placement_worker.store.tree_writes import writes_between


class Undone(Exception):
    """The reshape cannot be: nothing of it may be committed."""

    def __init__(self, why: EditResult) -> None:
        super().__init__(str(why))
        self.why = why


@dataclass(frozen=True)
class Reshaped:
    """The messages of a reshape."""

    changes: Sequence[ProviderChange]
    shaped: Mapping[str, Tree]
    writes: Sequence[BoundStatement]  # what is still to be written


async def reshape(tx: Transaction, book: Book, known: KnownNames, order: Reshape, now: float) -> Reshaped:
    """Widen, claim, settle; Undone when any of it cannot be."""
    opened, working = await _open(tx, book, order, now)
    _must(edits.widen(order, working, known))
    rooms = opened.world.providers
    for inventory in order.inventories:
        _refit(rooms[inventory.provider], working, inventory.provider, known)
    results = capacity.claim(ClaimRequested(claims=order.claims), opened.world) if order.claims else ()
    if results is None:
        raise Conflict("a consumer came or went while it was being looked for")
    if not all(isinstance(result, Claimed) for result in results):
        raise Undone(Denied(results=results))
    for uuid, room in opened.world.touched.items():
        if uuid in working.homes:
            used = {name: stock.used for name, stock in room.stocks.items()}
            working.put(replace(working.there(uuid), used=used, generation=room.generation))
    _must(edits.settle(order, working, known))
    for uuid, room in opened.world.touched.items():
        if uuid in working.homes:
            room.generation = working.there(uuid).generation
    pairs = working.changed()
    # First the trees, that there is a row for what is used of each class.
    await writes_between(book, pairs, now).all(tx)
    altered, writes = await claims.save_world(tx, book, opened, now)
    elsewhere = [change for change in altered if change.provider not in working.homes]
    return Reshaped(
        elsewhere + tree_reads.changes_between(pairs), {then.root: then for _, then in pairs}, writes
    )


async def _open(
    tx: Transaction, book: Book, order: Reshape, now: float
) -> tuple[claims.Opened, WorkingTrees]:
    """Lock all consumers and then all providers of the reshape, in the order of claims."""
    reading = book.reading
    listed = [inventory.provider for inventory in order.inventories]
    before = WorkingTrees(await tree_reads.read(tx, book, listed))
    newcomers, others = claims.consumers_of(order.claims)
    named = capacity.providers_of([ClaimRequested(claims=order.claims)], all_choices=True)
    opened = await claims.open_world(tx, book, newcomers, others, named | before.homes.keys(), now)
    working = WorkingTrees(await tree_reads.read(tx, book, listed))
    if any(opened.world.providers.get(uuid) is None for uuid in working.homes):
        raise Conflict("a tree grew while it was being locked")
    if book.reading != reading:
        raise Conflict("a class was renamed between the one and the other")
    return opened, working


def _refit(room: ClaimedProvider | None, working: WorkingTrees, provider: str, known: KnownNames) -> None:
    """Set the capacity by which claims are judged after a widening."""
    assert room is not None  # it is in the working trees, and locked
    state = working.there(provider)
    for name, inventory in state.inventories.items():
        used = state.used[name]
        room.stocks[name] = Stock(
            known.classes[name],
            inventory.capacity,
            used,
            used,
            inventory.min_unit,
            inventory.max_unit,
            inventory.step_size,
        )
    room.generation = room.was = state.generation


def _must(refusal: edits.Refused | None) -> None:
    if refusal is not None:
        raise Undone(refusal)
