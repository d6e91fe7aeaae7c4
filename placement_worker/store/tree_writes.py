"""SQL that stores changed provider trees: only the differences."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from bus.sql.statement import BoundStatement, Statement, sql
from placement_worker.core.trees import ProviderState, Tree
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
