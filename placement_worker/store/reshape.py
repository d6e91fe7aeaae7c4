"""Writing provider trees: the difference between what they were and what they become, set by set."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bus.database import Transaction
from bus.vocabulary import Inventory
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.store.names import Book
from placement_worker.store.statement import Call, Statement

_NOW = "CAST(:now AS double precision)"

_INSERT_PROVIDERS = Statement(
    "INSERT INTO resource_providers (id, uuid, name, generation, shape, parent_provider_id, root_provider_id,"
    " created_at, updated_at) SELECT n.id, n.uuid, n.called, n.generation, n.shape, n.parent, n.root,"
    f" {_NOW}, {_NOW} FROM {{n}}",
    id=int,
    uuid=str,
    called=str,
    generation=int,
    shape=int,
    parent=int,
    root=int,
)
_SET_PARENTS = Statement(
    "UPDATE resource_providers SET parent_provider_id = n.parent, root_provider_id = n.root,"
    f" updated_at = {_NOW} FROM {{n}} WHERE resource_providers.id = n.id",
    id=int,
    parent=int,
    root=int,
)
_SET_PROVIDERS = Statement(
    f"UPDATE resource_providers SET generation = n.generation, shape = n.shape, updated_at = {_NOW}"
    " FROM {n} WHERE resource_providers.id = n.id",
    id=int,
    generation=int,
    shape=int,
)
_SET_NAMES = Statement(
    f"UPDATE resource_providers SET name = n.called, updated_at = {_NOW} FROM {{n}}"
    " WHERE resource_providers.id = n.id",
    id=int,
    called=str,
)
_DELETE_PROVIDERS = Statement("DELETE FROM resource_providers WHERE id IN (SELECT n.id FROM {n})", id=int)
_UPSERT_INVENTORIES = Statement(
    "INSERT INTO inventories (resource_provider_id, resource_class_id, total, reserved, min_unit, max_unit,"
    " step_size, allocation_ratio, used, created_at, updated_at)"
    " SELECT n.provider, n.class, n.total, n.reserved, n.least, n.most, n.step, n.ratio, 0,"
    f" {_NOW}, {_NOW} FROM {{n}} WHERE true"
    " ON CONFLICT (resource_provider_id, resource_class_id) DO UPDATE SET total = excluded.total,"
    " reserved = excluded.reserved, min_unit = excluded.min_unit, max_unit = excluded.max_unit,"
    " step_size = excluded.step_size, allocation_ratio = excluded.allocation_ratio,"
    " updated_at = excluded.updated_at",
    **{
        "provider": int,
        "class": int,
        "total": int,
        "reserved": int,
        "least": int,
        "most": int,
        "step": int,
        "ratio": float,
    },
)
_DELETE_INVENTORIES = Statement(
    "DELETE FROM inventories WHERE EXISTS (SELECT 1 FROM {n}"
    " WHERE n.provider = inventories.resource_provider_id AND n.class = inventories.resource_class_id)",
    **{"provider": int, "class": int},
)


def _insert_pairs(table: str, column: str) -> Statement:
    return Statement(
        f"INSERT INTO {table} (resource_provider_id, {column}, created_at, updated_at)"
        f" SELECT n.provider, n.other, {_NOW}, {_NOW} FROM {{n}}",
        provider=int,
        other=int,
    )


def _delete_pairs(table: str, column: str) -> Statement:
    return Statement(
        f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {{n}}"
        f" WHERE n.provider = {table}.resource_provider_id AND n.other = {table}.{column})",
        provider=int,
        other=int,
    )


_INSERT_TRAITS = _insert_pairs("resource_provider_traits", "trait_id")
_DELETE_TRAITS = _delete_pairs("resource_provider_traits", "trait_id")
_INSERT_AGGREGATES = _insert_pairs("resource_provider_aggregates", "aggregate_id")
_DELETE_AGGREGATES = _delete_pairs("resource_provider_aggregates", "aggregate_id")

_Pairs = list[tuple[int, int]]


@dataclass(slots=True)
class _Links:
    """Pairs of a provider and something else, to insert and to delete."""

    new: _Pairs = field(default_factory=list)
    old: _Pairs = field(default_factory=list)

    def between(self, id_: int, before: Iterable[str], after: Iterable[str], ids: dict[str, int]) -> None:
        if before == after:
            return
        had, has = set(before), set(after)
        self.new += [(id_, ids[name]) for name in sorted(has - had)]
        self.old += [(id_, ids[name]) for name in sorted(had - has)]


NONE_NEW: Iterator[int] = iter(())
_NEVER = ProviderState(0, "", "", None, 0, 0, {}, {}, (), ())


class _Step(NamedTuple):
    """A provider before and after (None: it goes), the root it is under then, and whether that is another."""

    was: ProviderState
    then: ProviderState | None
    root: str
    moved: bool


async def save_trees(
    tx: Transaction,
    book: Book,
    pairs: Sequence[tuple[Tree, Tree]],
    now: float,
    numbers: Iterator[int] = NONE_NEW,
) -> list[Call]:
    """Make these trees what they become; a provider may go from one to another. Gives the writes left over.

    All are known to be locked, the first of each pair to be what is stored. `numbers` are for new ones.
    """
    old = {provider.uuid: (provider, before.root) for before, _ in pairs for provider in before.providers}
    ids = {uuid: provider.id for uuid, (provider, _) in old.items()}
    steps: list[_Step] = []
    for _, after in pairs:
        for provider in after.providers:
            was, root = old.pop(provider.uuid, (_NEVER, ""))
            if was != provider or root != after.root:
                steps.append(_Step(was, provider, after.root, root != after.root))
    steps += [_Step(was, None, "", False) for was, _ in old.values()]
    ids.update((step.then.uuid, next(numbers)) for step in steps if step.then and step.was is _NEVER)
    await _save_contents_that_go(tx, book, steps)
    writes = await _save_providers(tx, steps, ids, now)
    if inventories := _inventories_set(book, steps, ids):
        # Not left over: who adds a class that is being renamed has to wait before it is numbered, not after.
        for write in (*writes, _UPSERT_INVENTORIES.of(inventories, now=now)):
            await write(tx)
        writes = []
    return [*writes, *_advance(steps, now), *_save_links(book, steps, ids, now)]


async def _save_contents_that_go(tx: Transaction, book: Book, steps: Sequence[_Step]) -> None:
    """First what leaves: it frees names, and room in unique keys."""
    inventories: _Pairs = []
    traits, aggregates = _Links(), _Links()
    for was, now, _, _ in steps:
        if was is _NEVER:
            continue
        then = now or _NEVER
        inventories += [
            (was.id, book.classes.ids[name]) for name in was.inventories if name not in then.inventories
        ]
        traits.between(was.id, was.traits, then.traits, book.traits.ids)
        aggregates.between(was.id, was.aggregates, then.aggregates, book.aggregates.ids)
    for statement, rows in (
        (_DELETE_INVENTORIES, inventories),
        (_DELETE_TRAITS, traits.old),
        (_DELETE_AGGREGATES, aggregates.old),
    ):
        if rows:
            await statement(tx, rows)


async def _save_providers(
    tx: Transaction,
    steps: Sequence[_Step],
    ids: Mapping[str, int],
    now: float,
) -> list[Call]:
    gone = [was for was, then, _, _ in steps if then is None]
    made = [then for was, then, _, _ in steps if then is not None and was is _NEVER]
    kept = [(was, then) for was, then, _, _ in steps if then is not None and was is not _NEVER]
    renamed = [then for was, then in kept if was.name != then.name]
    wanted = {then.name for then in (*made, *renamed)}
    freed = [(was.id, was.uuid) for was in (*gone, *(was for was, _ in kept)) if was.name in wanted]
    if freed:  # names that change hands: the unique key sees them one at a time
        await _SET_NAMES(tx, freed, now=now)
    links = {
        then.uuid: (ids[then.parent] if then.parent else None, ids[root])
        for was, then, root, moved in steps
        if then is not None and (moved or was.parent != then.parent)
    }
    writes = []
    if made:
        rows = [
            (ids[one.uuid], one.uuid, one.name, one.generation, one.shape, *links.pop(one.uuid))
            for one in made
        ]
        writes.append(_INSERT_PROVIDERS.of(rows, now=now))
    if links or gone or renamed:  # these refer to who is new, or are other changes of the same table
        for write in writes:
            await write(tx)
        writes = []
    if links:
        await _SET_PARENTS(tx, [(ids[uuid], *link) for uuid, link in links.items()], now=now)
    if gone:
        await _DELETE_PROVIDERS(tx, [(one.id,) for one in gone])
    if renamed:
        await _SET_NAMES(tx, [(then.id, then.name) for then in renamed], now=now)
    return writes


def _advance(steps: Sequence[_Step], now: float) -> Iterator[Call]:
    advanced = [
        (then.id, then.generation, then.shape)
        for was, then, _, _ in steps
        if then is not None
        and was is not _NEVER
        and (was.generation, was.shape) != (then.generation, then.shape)
    ]
    if advanced:
        yield _SET_PROVIDERS.of(advanced, now=now)


def _inventories_set(book: Book, steps: Sequence[_Step], ids: Mapping[str, int]) -> list[tuple[Any, ...]]:
    return [
        (ids[then.uuid], book.classes.ids[name], *_figures(inventory))
        for was, then, _, _ in steps
        if then is not None
        for name, inventory in then.inventories.items()
        if was.inventories.get(name) != inventory
    ]


def _save_links(book: Book, steps: Sequence[_Step], ids: Mapping[str, int], now: float) -> Iterator[Call]:
    traits, aggregates = _Links(), _Links()
    for was, then, _, _ in steps:
        if then is None:
            continue
        id_ = ids[then.uuid]
        traits.between(id_, was.traits, then.traits, book.traits.ids)
        aggregates.between(id_, was.aggregates, then.aggregates, book.aggregates.ids)
    if traits.new:
        yield _INSERT_TRAITS.of(traits.new, now=now)
    if aggregates.new:
        yield _INSERT_AGGREGATES.of(aggregates.new, now=now)


def _figures(inventory: Inventory) -> tuple[int, int, int, int, int, float]:
    return (
        inventory.total,
        inventory.reserved,
        inventory.min_unit,
        inventory.max_unit,
        inventory.step_size,
        inventory.allocation_ratio,
    )
