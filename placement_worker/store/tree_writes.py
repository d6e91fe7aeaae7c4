"""Writing provider trees: the difference between what they were and what they become, set by set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bus.reports import Inventory
from bus.sql.statement import BoundStatement, Statement
from bus.sql.transaction import Transaction
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.store.numbered_names import Book
from placement_worker.store.sql import sql

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
_SET_NAMES = sql("""
    UPDATE resource_providers SET name = n.called, updated_at = :NOW FROM {n: id int, called str}
    WHERE resource_providers.id = n.id
""")
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
# Only the origin may change: an operator takes over reported contents.
_SET_AGGREGATE_OWNERS = sql("""
    UPDATE resource_provider_aggregates SET reported = n.reported, updated_at = :NOW
    FROM {n: provider int, other int, reported bool}
    WHERE resource_provider_aggregates.resource_provider_id = n.provider
    AND resource_provider_aggregates.aggregate_id = n.other
""")

_Pairs = list[tuple[int, int]]
_Links = list[tuple[int, int, bool]]  # a provider, what it is given, and whether by a report


NONE_NEW: Iterator[int] = iter(())
_NEVER = ProviderState(0, "", "", None, 0, 0, {}, {}, (), ())


class _Step(NamedTuple):
    """A provider before and after (None: deleted), its root after, and whether the root changed."""

    was: ProviderState
    then: ProviderState | None
    root: str
    moved: bool


@dataclass(frozen=True, slots=True)
class Writes:
    """The statements that write trees: first, then the inventories of new providers, then the last."""

    first: Sequence[BoundStatement]
    stocks: Sequence[BoundStatement]
    last: Sequence[BoundStatement]

    async def begin(self, tx: Transaction) -> Sequence[BoundStatement]:
        """Execute all statements except those that may go with the change number, and return these."""
        for write in (*self.first, *self.stocks):
            await write(tx)
        return self.last

    async def all(self, tx: Transaction) -> None:
        for write in await self.begin(tx):
            await write(tx)


def writes_between(
    book: Book, pairs: Sequence[tuple[Tree, Tree]], now: float, numbers: Iterator[int] = NONE_NEW
) -> Writes:
    """Return the statements that turn the stored trees into the new ones; `numbers` are for new providers."""
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
    first = [*_contents_that_go(book, steps), *_names_that_go(steps, now)]
    made, moved = _new_providers(steps, ids, now), list(_moves(steps, ids, now))
    others, new = _inventories(book, steps, ids)
    stocks = [_INSERT_INVENTORIES.of(new, now=now)] if new else []
    traits, aggregates = _links(book, steps, ids)
    last = [
        *_advance(steps, now),
        *([_SET_INVENTORIES.of(others, now=now)] if others else []),
        *_insert(_INSERT_TRAITS, traits, now),
        *_insert(_INSERT_AGGREGATES, aggregates, now),
        *_insert(_SET_AGGREGATE_OWNERS, _new_owners(book, steps), now),
    ]
    if first or moved:  # these refer to new providers, or change the same table
        return Writes([*first, *made, *moved], stocks, last)
    if stocks:  # adding a class that is being renamed must wait before the change is numbered
        return Writes([], [*made, *stocks], last)
    return Writes([], [], [*made, *last])


def _contents_that_go(book: Book, steps: Sequence[_Step]) -> Iterator[BoundStatement]:
    inventories: _Pairs = []
    traits: _Pairs = []
    aggregates: _Pairs = []
    for was, now, _, _ in steps:
        if was is _NEVER:
            continue
        then = now or _NEVER
        inventories += [
            (was.id, book.classes.ids[name]) for name in was.inventories if name not in then.inventories
        ]
        if was.traits != then.traits:
            gone = sorted(set(was.traits) - set(then.traits))
            traits += [(was.id, book.traits.ids[name]) for name in gone]
        if was.aggregates != then.aggregates:
            gone = sorted(set(was.aggregates) - set(then.aggregates))
            aggregates += [(was.id, book.aggregates.ids[uuid]) for uuid in gone]
    for statement, rows in (
        (_DELETE_INVENTORIES, inventories),
        (_DELETE_TRAITS, traits),
        (_DELETE_AGGREGATES, aggregates),
    ):
        if rows:
            yield statement.of(rows)


def _kept(steps: Sequence[_Step]) -> list[tuple[ProviderState, ProviderState]]:
    return [(was, then) for was, then, _, _ in steps if then is not None and was is not _NEVER]


def _names_that_go(steps: Sequence[_Step], now: float) -> Iterator[BoundStatement]:
    """Yield changes of names that another provider takes: the unique key checks them one at a time."""
    gone = [was for was, then, _, _ in steps if then is None]
    before = [*gone, *(was for was, _ in _kept(steps))]
    wanted = {then.name for was, then, _, _ in steps if then is not None and was.name != then.name}
    if freed := [(was.id, was.uuid) for was in before if was.name in wanted]:
        yield _SET_NAMES.of(freed, now=now)


def _new_providers(steps: Sequence[_Step], ids: Mapping[str, int], now: float) -> list[BoundStatement]:
    rows = [
        (
            ids[then.uuid],
            then.uuid,
            then.name,
            then.generation,
            then.shape,
            *_link(then, root, ids),
            then.reported.provider,
        )
        for was, then, root, _ in steps
        if then is not None and was is _NEVER
    ]
    return [_INSERT_PROVIDERS.of(rows, now=now)] if rows else []


def _link(then: ProviderState, root: str, ids: Mapping[str, int]) -> tuple[int | None, int]:
    return ids[then.parent] if then.parent else None, ids[root]


def _moves(steps: Sequence[_Step], ids: Mapping[str, int], now: float) -> Iterator[BoundStatement]:
    links = [
        (then.id, *_link(then, root, ids), then.reported.provider)
        for was, then, root, moved in steps
        if then is not None and was is not _NEVER and (moved or was.parent != then.parent)
    ]
    if links:
        yield _SET_PARENTS.of(links, now=now)
    if gone := [(was.id,) for was, then, _, _ in steps if then is None]:
        yield _DELETE_PROVIDERS.of(gone)
    if renamed := [(then.id, then.name) for was, then in _kept(steps) if was.name != then.name]:
        yield _SET_NAMES.of(renamed, now=now)


def _advance(steps: Sequence[_Step], now: float) -> Iterator[BoundStatement]:
    advanced = [
        (then.id, then.generation, then.shape)
        for was, then in _kept(steps)
        if (was.generation, was.shape) != (then.generation, then.shape)
    ]
    if advanced:
        yield _SET_PROVIDERS.of(advanced, now=now)


_Rows = list[tuple[Any, ...]]


def _inventories(book: Book, steps: Sequence[_Step], ids: Mapping[str, int]) -> tuple[_Rows, _Rows]:
    others: _Rows = []
    new: _Rows = []
    for was, then, _, _ in steps:
        if then is None:
            continue
        for name, inventory in then.inventories.items():
            before = was.inventories.get(name)
            if (
                before == inventory
                and was.withheld.get(name) == then.withheld.get(name)
                and (name in was.reported.classes) == (name in then.reported.classes)
            ):
                continue
            row = (
                ids[then.uuid],
                book.classes.ids[name],
                *_figures(inventory),
                then.withheld.get(name, 0),
                name in then.reported.classes,
            )
            (new if before is None else others).append(row)
    return others, new


def _links(book: Book, steps: Sequence[_Step], ids: Mapping[str, int]) -> tuple[_Links, _Links]:
    traits: _Links = []
    aggregates: _Links = []
    for was, then, _, _ in steps:
        if then is None:
            continue
        id_, put = ids[then.uuid], then.reported
        if was.traits != then.traits:
            new = sorted(set(then.traits) - set(was.traits))
            traits += [(id_, book.traits.ids[name], name in put.traits) for name in new]
        if was.aggregates != then.aggregates:
            new = sorted(set(then.aggregates) - set(was.aggregates))
            aggregates += [(id_, book.aggregates.ids[uuid], uuid in put.aggregates) for uuid in new]
    return traits, aggregates


def _new_owners(book: Book, steps: Sequence[_Step]) -> _Links:
    return [
        (then.id, book.aggregates.ids[uuid], uuid in then.reported.aggregates)
        for was, then in _kept(steps)
        if was.reported.aggregates != then.reported.aggregates
        for uuid in sorted(set(was.aggregates) & set(then.aggregates))
        if (uuid in was.reported.aggregates) != (uuid in then.reported.aggregates)
    ]


def _insert(statement: Statement, links: _Links, now: float) -> list[BoundStatement]:
    return [statement.of(links, now=now)] if links else []


def _figures(inventory: Inventory) -> tuple[int, int, int, int, int, float]:
    return (
        inventory.total,
        inventory.reserved,
        inventory.min_unit,
        inventory.max_unit,
        inventory.step_size,
        inventory.allocation_ratio,
    )
