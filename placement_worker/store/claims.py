"""Locks and reads the data of claims and releases, and writes the results, one statement for many rows.

Every writer locks in the order of LOCKS: consumers (new consumers by uuid, then existing consumers by id),
projects by id, the rows of rules, providers by id, the change number. A missing consumer is inserted before
its claim is decided: by the unique key, a concurrent claim or retirement of the consumer then waits.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from bus.claims import HOLDER_TYPES, ConsumerClaim, ReleaseRequested, Retired
from bus.replication import ProviderChange
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement, Statement, Transaction, sql
from bus.vocabulary import UNSAID_ID
from placement_worker.claim_rule import LOCKS, ClaimRule, ClaimScope
from placement_worker.core.capacity import ClaimWorld, Holder
from placement_worker.core.cell_limits import Owner, ended
from placement_worker.store.claimed_providers import read_providers
from placement_worker.store.hosts import limits, sharing
from placement_worker.store.numbered_names import Book

_INSERT = """
    INSERT INTO consumers
    (uuid, generation, project_id, user_id, consumer_type_id, client, created_at, updated_at)
    SELECT n.uuid, 1, n.project, n.owner, n.type, n.client, :NOW, :NOW
    FROM {n: uuid str, project int, owner int, type int, client bool} WHERE true
    ORDER BY n.uuid ON CONFLICT (uuid) DO NOTHING RETURNING id, uuid
"""
_INSERT_CONSUMERS = sql(_INSERT)
# For PostgreSQL: locks the providers in the same round trip if all consumers are new; if not, locks none.
_INSERT_AND_LOCK = sql(f"""
    WITH new AS ({_INSERT}),
    locked AS (SELECT p.id FROM resource_providers p WHERE (SELECT count(*) FROM new) = :new_consumers
    AND p.uuid = ANY(CAST(:providers AS text[])) ORDER BY p.id FOR NO KEY UPDATE OF p)
    SELECT new.id, new.uuid, there.providers FROM new, (SELECT count(*) AS providers FROM locked) there
""")
_LOCK_PROJECTS = sql(
    "SELECT p.id FROM {n: id int} JOIN projects p ON p.id = n.id ORDER BY p.id FOR UPDATE OF p"
)
_RETIRED = sql("""
    SELECT r.uuid, r.why, r.unplaceable, r.cell, r.revivable
    FROM {n: uuid str} JOIN retired_consumers r ON r.uuid = n.uuid
""")
_ALLOCATIONS = sql("""
    SELECT a.consumer_id, p.uuid AS provider, p.shape, a.resource_class_id, a.used FROM {n: id int}
    JOIN allocations a ON a.consumer_id = n.id JOIN resource_providers p ON p.id = a.resource_provider_id
""")
_LOCK_PROVIDERS = sql("""
    SELECT p.uuid FROM {n: uuid str} JOIN resource_providers p ON p.uuid = n.uuid
    ORDER BY p.id FOR NO KEY UPDATE OF p
""")
_SET_USED = sql("""
    UPDATE inventories SET used = n.used FROM {n: provider int, class int, used int}
    WHERE inventories.resource_provider_id = n.provider AND inventories.resource_class_id = n.class
""")
_SET_GENERATIONS = sql("""
    UPDATE resource_providers SET generation = n.generation, updated_at = :NOW
    FROM {n: id int, generation int} WHERE resource_providers.id = n.id
""")
_SET_CONSUMERS = sql("""
    UPDATE consumers SET generation = n.generation, project_id = n.project, user_id = n.owner,
    client = consumers.client AND n.client,
    consumer_type_id = COALESCE(n.type, consumer_type_id), updated_at = :NOW
    FROM {n: id int, generation int, project int, owner int, type int, client bool} WHERE consumers.id = n.id
""")
_SET_HOLDERS = sql("""
    UPDATE consumers SET generation = n.generation, project_id = o.project_id, user_id = o.user_id,
    consumer_type_id = n.type, keeps_for = n.whose, updated_at = :NOW
    FROM {n: id int, generation int, heir_of int, type int, whose str} JOIN consumers o ON o.id = n.heir_of
    WHERE consumers.id = n.id
""")
_DELETE_CONSUMERS = sql("DELETE FROM consumers WHERE id IN (SELECT n.id FROM {n: id int})")
_DELETE_ALLOCATIONS = sql("DELETE FROM allocations WHERE consumer_id IN (SELECT n.id FROM {n: id int})")
_INSERT_ALLOCATIONS = sql("""
    INSERT INTO allocations
    (consumer_id, resource_provider_id, resource_class_id, used, created_at, updated_at)
    SELECT n.consumer, n.provider, n.class, n.used, :NOW, :NOW
    FROM {n: consumer int, provider int, class int, used int}
""")
_INSERT_RETIRED = sql("""
    INSERT INTO retired_consumers (uuid, why, at, unplaceable, cell, revivable, project)
    SELECT n.uuid, n.why, :NOW, n.unplaceable, n.cell, n.revivable, n.project
    FROM {n: uuid str, why str, unplaceable bool, cell str, revivable bool, project str}
    WHERE true ORDER BY n.uuid ON CONFLICT DO NOTHING
""")
# Deletes the retirement of revivable instances that get allocations again, or are deleted.
_WAKE = sql("DELETE FROM retired_consumers WHERE uuid IN (SELECT n.uuid FROM {n: uuid str})")
# Revivable instances stay retired: their ids are not free.
PRUNE_RETIRED = sql("DELETE FROM retired_consumers WHERE at < :before AND NOT revivable")


# The order of the statements: _SET_HOLDERS reads consumers that _DELETE_CONSUMERS deletes.
_LAST = (
    _SET_USED, _SET_GENERATIONS, _INSERT_ALLOCATIONS, _SET_CONSUMERS, _SET_HOLDERS, _DELETE_CONSUMERS, _WAKE,
    _INSERT_RETIRED,
)  # fmt: skip


@cache
def _lock_consumers(columns: tuple[str, ...], owners: bool) -> Statement:
    of_rules = "".join(f", c.{column}" for column in columns)
    of_owners = ", p.external_id, u.external_id, t.name" if owners else ", NULL, NULL, NULL"
    joins = """LEFT JOIN projects p ON p.id = c.project_id LEFT JOIN users u ON u.id = c.user_id
        LEFT JOIN consumer_types t ON t.id = c.consumer_type_id"""
    return sql(f"""
        SELECT c.id, c.uuid, c.generation, c.project_id{of_owners}{of_rules}
        FROM {{n: uuid str}} JOIN consumers c ON c.uuid = n.uuid {joins if owners else ""}
        ORDER BY c.id FOR UPDATE OF c
    """)


def claim_scope(claims: Sequence[ConsumerClaim], providers: Iterable[str], cell: str = "") -> ClaimScope:
    """Return the scope of claims that use the given providers."""
    scope = ClaimScope(claims, {}, set(), {*providers}, cell=cell)
    scope.reads_pools = any(claim.take_over or (claim.begins and claim.keep) for claim in claims)
    scope.leaves_holders = any(claim.keep for claim in claims)
    for claim in claims:
        if claim.generation in (None, "any"):
            scope.new_consumers.setdefault(claim.consumer, claim)
        else:
            scope.other_consumers.add(claim.consumer)
        if claim.take_over:
            scope.other_consumers.add(claim.take_over)
    for claim in claims:
        for name in (claim.keep, claim.begins):
            if name:
                scope.new_consumers.setdefault(name, None)
    return scope


def release_scope(releases: Iterable[ReleaseRequested], cell: str, unread: Collection[str]) -> ClaimScope:
    """Return the scope of releases; `unread` are consumers that an earlier attempt lacked."""
    scope = ClaimScope((), {}, set(), cell=cell, unread=unread)
    for release in releases:
        scope.other_consumers.add(release.consumer)
        if release.retire:  # insert it, if missing: a concurrent claim of the consumer then waits
            scope.new_consumers[release.consumer] = None
        if release.keep:
            scope.leaves_holders = True
            scope.new_consumers[release.keep] = None
    return scope


async def open_world(
    tx: Transaction,
    book: Book,
    scope: ClaimScope,
    now: float,
    rules: Sequence[ClaimRule] = (),
    columns: Mapping[str, str] = MappingProxyType({}),
    holder_types: Collection[str] = HOLDER_TYPES,
) -> ClaimWorld:
    """Lock and read the data that decides claims and releases; if a cell sent them, also read the agents that
    own the providers, because a cell may claim only on hosts of its agents. `columns` are those of all rules
    in the table of consumers, and `holder_types` the consumer types that are no instances.
    """
    reading, new_consumers = book.reading, scope.new_consumers
    everyone = {*new_consumers, *scope.other_consumers}
    # Lock providers already here only if no existing consumer and no row of a rule is locked before them.
    soon = () if scope.other_consumers or scope.locks else scope.providers
    inserted, locked = await _insert(tx, book, new_consumers, soon, now) if new_consumers else ([], False)
    holders = {uuid: Holder(uuid, id_) for id_, uuid in inserted}
    placeholders = {uuid: new_consumers[uuid] for uuid in holders}
    world = ClaimWorld({}, holders, {}, placeholders=placeholders, protected=columns, now=now)
    world.holder_types = holder_types
    held: dict[int, Holder] = {}
    if older := [(uuid,) for uuid in everyone if uuid not in holders]:
        held = await _lock_holders(tx, older, tuple(columns), owners=bool(scope.cell))
        holders.update({holder.uuid: holder for holder in held.values()})
        if not new_consumers.keys() <= holders.keys():
            raise Conflict("a consumer ended while it was being read")
    shapes = await _read_allocations(tx, book, held) if held else {}
    if scope.projects:
        await _LOCK_PROJECTS(tx, [(book.projects.ids[name],) for name in scope.projects])
    for rule in sorted((rule for rule in rules if rule.locks), key=lambda rule: LOCKS.index(rule.locks)):
        await rule.read(tx, scope, world)
    wanted = {*scope.providers, *(provider for holder in held.values() for provider in holder.held)}
    existing = wanted
    if wanted and not locked:
        existing = {uuid for (uuid,) in await _LOCK_PROVIDERS(tx, [(uuid,) for uuid in wanted])}
    claimed, some_retired = await read_providers(tx, book, existing, everyone)
    world.providers = {**dict.fromkeys(wanted), **claimed}
    if some_retired:
        world.retired = {
            row["uuid"]: ended(_retired(row), scope.cell)
            for row in await _RETIRED(tx, [(uuid,) for uuid in everyone])
        }
    if any((found := world.providers[id_]) is None or found.shape != shape for id_, shape in shapes.items()):
        raise Conflict("allocations may have moved while their providers were being locked")
    if scope.reads_pools:
        world.sharing = await sharing(tx, world.providers)
    for rule in rules:
        if not rule.locks:
            await rule.read(tx, scope, world)
    world.rules = [rule for rule in rules if type(rule) in world.state]
    if scope.cell:
        roots = {uuid: provider.root for uuid, provider in claimed.items()}
        world.cell_limits = await limits(tx, scope.cell, roots)
    if book.reading != reading:
        raise Conflict("a resource class was renamed in between")
    return world


async def _lock_holders(
    tx: Transaction, consumers: Sequence[tuple[str]], columns: tuple[str, ...], *, owners: bool
) -> dict[int, Holder]:
    """Lock existing consumers; return them by their database numbers. With `owners`, also read their project,
    user and type.
    """
    held = {}
    for row in await _lock_consumers(columns, owners)(tx, consumers):
        id_, uuid, generation, project_id, project, user, type_, *values = row
        marks = dict(zip(columns, values, strict=True))
        owner = Owner(project or UNSAID_ID, user or UNSAID_ID, type_)
        held[id_] = Holder(
            uuid, id_, generation, project_id=project_id, owner=owner, marks=marks, marks_were={**marks}
        )
    return held


def _retired(row: Any) -> Retired:
    return Retired(
        why=row["why"],
        unplaceable=bool(row["unplaceable"]),
        revivable=bool(row["revivable"]),
        cell=row["cell"],
    )


async def _insert(
    tx: Transaction,
    book: Book,
    new_consumers: dict[str, ConsumerClaim | None],
    providers: Collection[str],
    now: float,
) -> tuple[list[tuple[int, str]], bool]:
    """Insert the consumers `new_consumers` that do not exist and, on PostgreSQL, lock the providers of the
    claims in the same statement. Return the inserted consumers' database ids and uuids, and whether all
    providers were locked.
    """
    rows = [
        (uuid, *_owner(book, claim), claim is not None and claim.client)
        for uuid, claim in new_consumers.items()
    ]
    if not providers or tx.dialect == "sqlite":
        return [(id_, uuid) for id_, uuid in await _INSERT_CONSUMERS(tx, rows, now=now)], False
    found = await _INSERT_AND_LOCK(tx, rows, now=now, new_consumers=len(rows), providers=list(providers))
    locked = len(found) == len(rows) and found[0]["providers"] == len(set(providers))
    return [(row["id"], row["uuid"]) for row in found], locked


async def _read_allocations(tx: Transaction, book: Book, held: dict[int, Holder]) -> dict[str, int]:
    rows = await _ALLOCATIONS(tx, [(id_,) for id_ in held])
    names = await book.class_names(tx, {row["resource_class_id"] for row in rows})
    for row in rows:
        amounts = held[row["consumer_id"]].held.setdefault(row["provider"], {})
        amounts[names[row["resource_class_id"]]] = row["used"]
    return {row["provider"]: row["shape"] for row in rows}


async def save_world(
    tx: Transaction, book: Book, world: ClaimWorld, now: float
) -> tuple[list[ProviderChange], list[BoundStatement]]:
    """Store the results of claims and releases. Return the changes to log, and the statements to execute
    together with the log entry.
    """
    touched, rows = world.touched.values(), _changed_rows(book, world)
    for provider in touched:
        rows[_SET_USED] += [
            (provider.id, stock.class_id, stock.used)
            for stock in provider.stocks.values()
            if stock.used != stock.was
        ]
        if provider.generation != provider.was:
            rows[_SET_GENERATIONS].append((provider.id, provider.generation))
    cell = world.cell_limits.cell if world.cell_limits else ""
    rows[_INSERT_RETIRED] = [
        (
            uuid,
            retired.why,
            retired.unplaceable,
            cell or retired.cell,
            retired.revivable,
            world.started.get(uuid, ""),
        )
        for uuid, retired in world.to_retire.items()
    ]
    ending = world.woken & world.to_retire.keys()
    rows[_WAKE] = [(uuid,) for uuid in world.woken - ending]
    if rows[_DELETE_ALLOCATIONS]:
        await _DELETE_ALLOCATIONS(tx, rows[_DELETE_ALLOCATIONS])
    if ending:
        await _WAKE(tx, [(uuid,) for uuid in ending])
    altered = [
        ProviderChange(
            provider.uuid,
            provider.root,
            provider.generation,
            {name: stock.used for name, stock in provider.stocks.items()},
        )
        for provider in touched
    ]
    return altered, [statement.of(rows[statement], now=now) for statement in _LAST if rows[statement]]


def _changed_rows(book: Book, world: ClaimWorld) -> defaultdict[Statement, list[tuple[Any, ...]]]:
    placeholders = world.placeholders
    rows: defaultdict[Statement, list[tuple[Any, ...]]] = defaultdict(list)
    unused = [world.holders[uuid] for uuid in placeholders if not world.holders[uuid].generation]
    rows[_DELETE_CONSUMERS] = [(holder.id,) for holder in unused]
    for holder in world.changed_holders.values():
        if holder.uuid not in placeholders:
            rows[_DELETE_ALLOCATIONS].append((holder.id,))
            if not holder.generation:
                rows[_DELETE_CONSUMERS].append((holder.id,))
        claim = holder.by
        if claim is None and holder.heir_of is not None and holder.held:
            heir = (holder.heir_of.id, book.types.ids[holder.heir_type], holder.keeps_for)
            rows[_SET_HOLDERS].append((holder.id, holder.generation, *heir))
        elif claim is None:
            continue
        elif holder.uuid not in placeholders or placeholders[holder.uuid] is not claim:
            owner = _owner(book, claim)
            rows[_SET_CONSUMERS].append((holder.id, holder.generation, *owner, claim.client))
        for uuid, resources in holder.held.items():
            provider = world.touched[uuid]
            rows[_INSERT_ALLOCATIONS] += [
                (holder.id, provider.id, provider.stocks[name].class_id, used)
                for name, used in resources.items()
            ]
    return rows


def _owner(book: Book, claim: ConsumerClaim | None) -> tuple[int, int, int | None]:
    if claim is None:
        return (0, 0, 0)
    kind = None if claim.type is None else book.types.ids[claim.type]
    return book.projects.ids[claim.project], book.users.ids[claim.user], kind
