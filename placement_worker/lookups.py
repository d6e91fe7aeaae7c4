"""Answers queries from placement's database; each answer shows one consistent state of the database, except
that the index selects the providers with given capacity, traits or aggregates.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bus.replication import ChangesFound, FindChanges, FindTrees, TreesFound
from bus.requests import ResourceGroup
from bus.resources import (
    AllocationsFound,
    Consumer,
    FindAllocations,
    FindProviders,
    FindUsages,
    Provider,
    ProvidersFound,
    UsagesFound,
)
from bus.sql.statement import Statement, Transaction, sql
from bus.vocabulary import MAX_INT
from placement_worker.core.assignment import matching
from placement_worker.core.labels import stored_labels
from placement_worker.core.trees import ROOM, Packing
from placement_worker.store import changes, stored_trees
from placement_worker.store.changes import NAMES_EDITION
from placement_worker.store.hosts import limits, with_labels
from placement_worker.store.numbered_names import Book, NumberedNames
from placement_worker.store.stored_trees import (
    AGGREGATES,
    INVENTORIES,
    TRAITS,
    Stocks,
    read_unknown,
    stored_names,
    with_stocks,
)
from placement_worker.transactions import PlacementOperations

# SQL of queries about providers, consumers and usages of projects.


_EDITION = f"(SELECT number FROM changes WHERE id = {NAMES_EDITION})"

# Part of a provider → SQL that reads it, and the table with the time of its last change.
_PARTS = {
    "inventories": (INVENTORIES, "inventories"),
    "traits": (TRAITS, "resource_provider_traits"),
    "aggregates": (AGGREGATES, "resource_provider_aggregates"),
}

_OWNER = ("cell", "agent", "zone", "host", "sequence", "gone")

Which = tuple[str, str]  # a selection of providers: SQL of further joins, and of a condition
ALL: Which = ("", "")
BY_ID: Which = ("JOIN {n: uuid str} ON n.uuid = p.uuid", "")
BY_NAME: Which = ("", "WHERE p.name = :name")
BY_HOST: Which = (
    "",
    """
    WHERE p.id IN (SELECT t.id FROM resource_providers t WHERE t.name = :host AND t.parent_provider_id IS NULL
    UNION SELECT t.id FROM hosts o JOIN resource_providers t ON t.uuid = o.root WHERE o.host = :host)
    """,
)
BY_TREE: Which = (
    "",
    "WHERE p.root_provider_id = (SELECT t.root_provider_id FROM resource_providers t WHERE t.uuid = :tree)",
)
BY_AGENT: Which = (
    "",
    """
    WHERE p.id IN (SELECT m.id FROM {n: agent str} JOIN hosts o ON o.agent = n.agent
    AND (CAST(:cell AS text) = '' OR o.cell = CAST(:cell AS text))
    JOIN resource_providers t ON t.uuid = o.root JOIN resource_providers m ON m.root_provider_id = t.id
    WHERE m.uuid > :after ORDER BY m.uuid LIMIT :most)
    """,
)
BY_CELL: Which = (
    "",
    """
    WHERE p.root_provider_id IN (SELECT t.id FROM hosts o JOIN resource_providers t ON t.uuid = o.root
    WHERE o.cell = :cell)
    """,
)


@cache
def _providers(selection: Which, parts: frozenset[str]) -> Statement:
    lists = []
    for part, (listed, table) in _PARTS.items():
        changed = f"(SELECT max(c.updated_at) FROM {table} c WHERE c.resource_provider_id = p.id)"
        listed, changed = (listed, changed) if part in parts else ("NULL", "NULL")
        lists.append(f"{listed} AS {part}, {changed} AS {part}_updated")
    joined, condition = selection
    owner = "".join(f", h.{column}" for column in (*_OWNER, "labels")) if "owner" in parts else ""
    return sql(f"""
        SELECT p.id, p.uuid, p.name, q.uuid AS parent, r.uuid AS root, p.generation, p.updated_at,
        {", ".join(lists)}, {_EDITION} AS edition{owner} FROM resource_providers p {joined}
        JOIN resource_providers r ON r.id = p.root_provider_id
        {"LEFT JOIN hosts h ON h.root = r.uuid" if owner else ""}
        LEFT JOIN resource_providers q ON q.id = p.parent_provider_id {condition}
    """)


_CONSUMER = """
    p.uuid AS provider, p.generation AS provider_generation, c.uuid AS consumer, c.generation,
    j.external_id AS project, u.external_id AS owner, k.name AS type, c.client, c.updated_at,
    a.resource_class_id, a.used, a.updated_at AS allocated_at, {edition} AS edition,
    {protected} AS protected
"""
_OWNERS = """
    LEFT JOIN projects j ON j.id = c.project_id LEFT JOIN users u ON u.id = c.user_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
"""
_HELD_BY = """
    FROM {n: uuid str} JOIN consumers c ON c.uuid = n.uuid
    JOIN allocations a ON a.consumer_id = c.id JOIN resource_providers p ON p.id = a.resource_provider_id
"""
_HELD_OF = """
    FROM {n: uuid str} JOIN resource_providers p ON p.uuid = n.uuid
    LEFT JOIN allocations a ON a.resource_provider_id = p.id LEFT JOIN consumers c ON c.id = a.consumer_id
"""
_RETIRED = """
    WITH ids AS (SELECT n.uuid FROM {n: uuid str})
    SELECT i.uuid, r.cell AS retired, NULLIF(r.project, '') AS project
    FROM ids i JOIN retired_consumers r ON r.uuid = i.uuid
"""
_OF_PROJECT = """
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
    WHERE c.project_id = (SELECT j.id FROM projects j WHERE j.external_id = :project)
    AND (CAST(:owner AS text) = ''
    OR c.user_id = (SELECT u.id FROM users u WHERE u.external_id = CAST(:owner AS text)))
    GROUP BY k.name
"""
_USED = sql(f"""
    SELECT k.name AS type, -1 AS class, count(*) AS amount, {_EDITION} AS edition
    FROM consumers c {_OF_PROJECT}
    UNION ALL SELECT k.name, a.resource_class_id, CAST(sum(a.used) AS bigint), {_EDITION}
    FROM consumers c JOIN allocations a ON a.consumer_id = c.id
    {_OF_PROJECT}, a.resource_class_id ORDER BY 2
""")


async def _read_providers(
    tx: Transaction,
    book: Book,
    selection: Which,
    parts: Collection[str],
    values: Iterable[Sequence[Any]] = (),
    **given: str | int,
) -> list[Provider]:
    """Return the providers of a selection, in the order in which they were made. `values` or `given` are the
    parameters of the selection, such as the uuids for BY_ID. `parts` are the contents to read.
    """
    rows = await _providers(selection, frozenset(parts))(tx, values, **given)
    if not rows:
        return []
    decoded, found = await with_stocks(tx, book, rows), []
    traits = await _named(tx, book.traits, rows, "traits")
    aggregates = await _named(tx, book.aggregates, rows, "aggregates")
    whens = ["updated_at", *(f"{part}_updated" for part in _PARTS)]
    for row, stocks in decoded:
        provider = Provider(
            id=row["uuid"],
            name=row["name"],
            parent=row["parent"],
            root=row["root"],
            generation=row["generation"],
            inventories=stocks.inventories,
            used=stocks.used,
            traits=traits[row["traits"]],
            aggregates=aggregates[row["aggregates"]],
            updated=max(when for name in whens if (when := row[name]) is not None),
            **(_owner(row, book, stocks) if "owner" in parts else {}),
        )
        found.append(provider)
    return found


def _owner(row: Mapping[str, Any], book: Book, stocks: Stocks) -> dict[str, Any]:
    if row["cell"] is None:
        return {}
    fields = {name: row[name] for name in _OWNER} | {"gone": bool(row["gone"])}
    if row["labels"]:
        fields["label_sources"] = stored_labels(row["labels"])
    if len(stocks.reported) < len(stocks.inventories):
        fields["kept_classes"] = tuple(name for name in stocks.inventories if name not in stocks.reported)
    for part, names in (("traits", book.traits), ("aggregates", book.aggregates)):
        fields[f"kept_{part}"] = tuple(names.names[id_] for id_ in stored_names(row[part]).unreported or ())
    return fields


async def _named(
    tx: Transaction, names: NumberedNames, rows: Sequence[Any], column: str
) -> dict[str | None, tuple[str, ...]]:
    columns = {row[column] for row in rows}
    await read_unknown(tx, names, columns)
    return {column: tuple(names.names[id_] for id_ in sorted(stored_names(column).all)) for column in columns}


@cache
def _held(of_consumers: bool, protecting: tuple[str, ...]) -> Statement:
    """Return the statement that reads what consumers hold, or what is held of providers. No other
    consumer may take the capacity of one with a value in one of the columns `protecting`.
    """
    protected = " OR ".join(f"c.{column} IS NOT NULL" for column in protecting) or "false"
    columns = _CONSUMER.format(edition=_EDITION, protected=protected)
    return sql(f"SELECT {columns} {_HELD_BY if of_consumers else _HELD_OF} {_OWNERS}")


async def _read_allocations(
    tx: Transaction,
    book: Book,
    consumers: Collection[str],
    of: Collection[str],
    protecting: tuple[str, ...] = (),
) -> tuple[list[Consumer], dict[str, int]]:
    """Return consumers with their allocations: the given consumers or, if none are given, all consumers of
    the providers `of`. If both are given, return only allocations at these providers. Also return the
    generations of the providers. `protecting`: columns of rules whose values protect a consumer.
    """
    rows = await _held(bool(consumers), protecting)(tx, [(uuid,) for uuid in consumers or of])
    if not rows:
        return [], {}
    rows = sorted(
        rows, key=lambda row: (row["consumer"] or "", row["provider"], row["resource_class_id"] or 0)
    )
    await book.turn_to(tx, rows[0]["edition"])
    classes = {row["resource_class_id"] for row in rows if row["resource_class_id"] is not None}
    names = await book.class_names(tx, classes)
    found: dict[str, dict[str, Any]] = {}
    generations: dict[str, int] = {}
    for row in rows:
        provider, consumer = row["provider"], row["consumer"]
        if consumers and of and provider not in of:
            continue
        generations[provider] = row["provider_generation"]
        if consumer is None:  # a provider without allocations
            continue
        if consumer not in found:
            found[consumer] = {name: row[name] for name in ("generation", "project", "type")}
            found[consumer] |= {"id": consumer, "user": row["owner"], "client": bool(row["client"])}
            found[consumer] |= {"allocations": {}, "updated": 0.0, "protected": bool(row["protected"])}
        fields = found[consumer]
        fields["allocations"].setdefault(provider, {})[names[row["resource_class_id"]]] = row["used"]
        fields["updated"] = max(fields["updated"], row["updated_at"], row["allocated_at"])
    return [Consumer(**fields) for fields in found.values()], generations


@cache
def _others(objects: tuple[tuple[str, str], ...]) -> Statement:
    """Return the statement that finds which ids are of retired consumers or of objects of features."""
    tables = (
        f" UNION ALL SELECT i.uuid, NULL, {project} FROM ids i JOIN {table} t ON t.uuid = i.uuid"
        for table, project in objects
    )
    return sql("".join([_RETIRED, *tables]))


async def _read_others(
    tx: Transaction, ids: Collection[str], objects: tuple[tuple[str, str], ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what has these ids and may hold nothing: objects of features and started moves, with their
    projects, and retired consumers, with the cells that retired them. `objects`: the tables of features, with
    the SQL expression of the project.
    """
    rows = await _others(objects)(tx, [(id_,) for id_ in sorted(set(ids))])
    found = {row["uuid"]: row["project"] for row in rows if row["project"] is not None}
    return found, {row["uuid"]: row["retired"] for row in rows if row["retired"] is not None}


async def _read_usages(
    tx: Transaction, book: Book, project: str, user: str
) -> tuple[dict[str | None, dict[str, int]], dict[str | None, int]]:
    """Return the amount of each resource class that a project uses (with `user`: that this user's consumers
    use), and the number of consumers, both by consumer type.
    """
    rows = await _USED(tx, project=project, owner=user)
    if not rows:
        return {}, {}
    await book.turn_to(tx, rows[0]["edition"])
    names = await book.class_names(tx, {row["class"] for row in rows if row["class"] >= 0})
    used: dict[str | None, dict[str, int]] = {}
    consumers: dict[str | None, int] = {}
    for row in rows:
        if row["class"] < 0:
            consumers[row["type"]] = row["amount"]
            used[row["type"]] = {}
        else:
            used[row["type"]][names[row["class"]]] = row["amount"]
    return used, consumers


# The answers to queries.


UNKNOWN = "unknown"  # the reported type of consumers without one


@dataclass(eq=False)
class Lookups(PlacementOperations):
    """Answers queries about providers, allocations and usages from the database."""

    # columns of consumers: no other consumer may take the capacity of one with a value there
    protecting: tuple[str, ...]
    objects: tuple[tuple[str, str], ...]  # tables of objects of features, with the SQL of their projects

    async def providers(self, query: FindProviders, *, cell: str = "") -> ProvidersFound:
        """Return the providers that a query selects; if `cell` is not empty, only providers of hosts of this
        cell.
        """
        among = await self._among(query)
        if among is not None and not among:
            return ProvidersFound(providers=())
        # A query that needs only one statement runs outside a transaction; unknown names are read afterwards.
        async with self.database.read() if "labels" in query.parts else self.database.read_single() as tx:
            found = await self._first(tx, query, among, cell)
        met = [
            provider
            for provider in found
            if (among is None or provider.id in among)
            and (not query.name or provider.name == query.name)
            and (not query.host or (provider.parent is None and query.host in (provider.host, provider.name)))
            and (not query.agents or provider.agent in query.agents)
            and (not cell or provider.cell == cell)
        ]
        if query.limit:
            behind = (provider for provider in met if provider.id > query.after)
            met = sorted(behind, key=lambda provider: provider.id)[: query.limit]
        return ProvidersFound(providers=tuple(met))

    async def _among(self, query: FindProviders) -> set[str] | None:
        """Return the ids of the providers with the capacity, traits, aggregates and tree that a query
        requires, from the index. Return None if the query requires none of them, or only a tree, which one
        statement reads.
        """
        groups = [] if query.like is None else [query.like]
        if query.in_tree is not None and (groups or query.ids or query.name or query.host):
            groups.append(ResourceGroup(in_tree=query.in_tree))
        if not groups:
            return None
        await self.log.memory.fresh()
        return matching(self.log.memory.index, groups)

    async def _first(
        self, tx: Transaction, query: FindProviders, among: Collection[str] | None, cell: str
    ) -> list[Provider]:
        """Read providers by the most selective condition of a query; others are checked afterwards."""
        parts = {*query.parts, "owner"} if query.agents or query.host or cell else query.parts
        selection, values = ALL, list[tuple[str]]()
        given: dict[str, str | int] = {}
        if query.ids:
            selection, values = BY_ID, [(uuid,) for uuid in dict.fromkeys(query.ids)]
        elif query.host:
            selection, given = BY_HOST, {"host": query.host}
        elif query.name:
            selection, given = BY_NAME, {"name": query.name}
        elif among is not None:
            after = query.after if query.limit else ""
            selection, values = BY_ID, [(uuid,) for uuid in among if uuid > after]
        elif query.in_tree is not None:
            selection, given = BY_TREE, {"tree": query.in_tree}
        elif query.agents:
            selection, values = BY_AGENT, [(agent,) for agent in dict.fromkeys(query.agents)]
            given = {"cell": cell, "after": "", "most": MAX_INT}
            if query.limit:
                given |= {"after": query.after, "most": query.limit}
        elif cell:
            selection, given = BY_CELL, {"cell": cell}
        found = await _read_providers(tx, self.book, selection, parts, values, **given)
        return await with_labels(tx, found) if "labels" in parts else found

    async def trees(self, query: FindTrees) -> TreesFound:
        """Return whole provider trees, as many as fit into one message: of the roots in the query or, if it
        has none, the next page of all trees.
        """
        packing = Packing(ROOM)
        page = [(0, root) for root in query.roots]
        async with self.database.read() as tx:
            page = page or await stored_trees.roots_after(tx, query.after, query.limit)
            found = await stored_trees.load(tx, self.book, [root for _, root in page])
            history = tx.history
        after: int | None = query.after
        for mark, root in page:
            if not packing.add(found[root], query.skip):
                break
            after = mark
        else:
            after = after if len(page) == query.limit else None
        return packing.answer(more=None if query.roots else after, history=history)

    async def changes(self, query: FindChanges) -> ChangesFound:
        """Return a page of the change log."""
        async with self.database.read_single() as tx:
            return await changes.since(tx, query.after, query.limit)

    async def allocations(self, query: FindAllocations, *, cell: str = "") -> AllocationsFound:
        """Return allocations of given consumers or providers. If `cell` is not empty, consumers without
        allocations on hosts of this cell are left out.
        """
        if not query.consumers and not query.providers:
            return AllocationsFound(consumers=(), generations={})
        if cell:
            return await self._allocations_within(query, cell)
        if query.others and query.consumers:
            return await self._allocations_and_others(query)
        async with self.database.read_single() as tx:
            found, generations = await self._allocations(tx, query)
        return AllocationsFound(consumers=tuple(found), generations=generations)

    async def _allocations(
        self, tx: Transaction, query: FindAllocations
    ) -> tuple[list[Consumer], dict[str, int]]:
        consumers, providers = query.consumers, query.providers
        return await _read_allocations(tx, self.book, consumers, providers, self.protecting)

    async def _allocations_and_others(self, query: FindAllocations) -> AllocationsFound:
        async with self.database.read() as tx:
            found, generations = await self._allocations(tx, query)
            objects, retired = await _read_others(tx, query.consumers, self.objects)
        return AllocationsFound(
            consumers=tuple(found), generations=generations, objects=objects, retired=retired
        )

    async def _allocations_within(self, query: FindAllocations, cell: str) -> AllocationsFound:
        """Answer a query of a cell about allocations: only with consumers on providers of this cell."""
        async with self.database.read() as tx:
            found, generations = await self._allocations(tx, query)
            homes = await stored_trees.homes(tx, generations)
            cell_limits = await limits(tx, cell, homes)
        in_cell = [
            consumer
            for consumer in found
            if not cell_limits.bars_holder(consumer.id, [(id_, homes[id_]) for id_ in consumer.allocations])
        ]
        seen = {provider for consumer in in_cell for provider in consumer.allocations}
        return AllocationsFound(
            consumers=tuple(in_cell),
            generations={provider: number for provider, number in generations.items() if provider in seen},
        )

    async def usages(self, query: FindUsages) -> UsagesFound:
        """Return what a project uses, by consumer type."""
        async with self.database.read_single() as tx:
            used, consumers = await _read_usages(tx, self.book, query.project, query.user)
        return UsagesFound(
            used={kind or UNKNOWN: amounts for kind, amounts in used.items()},
            consumers={kind or UNKNOWN: amount for kind, amount in consumers.items()},
        )
