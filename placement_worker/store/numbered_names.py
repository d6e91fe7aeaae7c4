"""Names and their database ids: resource classes, traits, aggregates, projects, users, consumer types.

New names are committed in a separate transaction before the transaction that uses them, so cached ids are
always committed; an unused name does no harm. Classes and traits can be renamed and deleted: this increases
the edition of the names, which every read of trees checks. Ids of classes are never reused.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import os_resource_classes  # type: ignore[import-untyped]
import os_traits  # type: ignore[import-untyped]

from bus.claims import HOLDER_TYPES, ConsumerClaim
from bus.names import Named, NameKind
from bus.reports import ProviderReport
from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.sql.statement import Statement, Transaction, sql
from placement_worker.store.changes import AGGREGATES_TURN, CLASS_NUMBERS, NAMES_EDITION, rules_edition

STANDARD_CLASSES = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}
STANDARD_TRAITS = frozenset(os_traits.get_traits())
FIRST_CUSTOM_CLASS = 10_000  # smaller ids are positions in os_resource_classes.STANDARDS

_OPEN = sql("""
    INSERT INTO changes (id, number) SELECT n.id, 0 FROM {n: id int} WHERE true ON CONFLICT DO NOTHING
""")
_EDITION = sql("SELECT number FROM changes WHERE id = :id")
_NEW_EDITION = sql("UPDATE changes SET number = number + 1 WHERE id = :id RETURNING number")


Again = Callable[[Database], Awaitable[None]]  # reads all names into the cache again


class _Numbers(dict[str, int]):
    """A cache of names' database ids. A missing name raises Conflict; the transaction is then retried, and
    reads the name from the database.
    """

    def __missing__(self, name: str) -> int:
        raise Conflict(f"{name} was dropped or renamed by another process")


class NumberedNames:
    """One database table of names, for example of all traits, with a cache of their ids."""

    def __init__(self, again: Again, table: str, column: str = "name") -> None:
        self._again = again
        self.ids: dict[str, int] = _Numbers()
        self.names: dict[int, str] = {}
        self.forgotten = 0  # counts renamed and deleted names of cached ids
        self._all = sql(f"SELECT id, {column} FROM {table} ORDER BY id")
        self._find = sql(
            f"SELECT t.id, t.{column} FROM {{n: called str}} JOIN {table} t ON t.{column} = n.called"
        )
        self._insert = sql(f"""
            INSERT INTO {table} ({column}, created_at, updated_at) SELECT n.called, :NOW, :NOW
            FROM {{n: called str}} WHERE true ORDER BY n.called ON CONFLICT DO NOTHING RETURNING id
        """)

    async def read_all(self, tx: Transaction) -> None:
        """Replace the known names by those of the database, for example after a failover."""
        before = dict(self.names)
        found = await self._all(tx)
        existing = {id_ for id_, _ in found}
        self.forget(id_ for id_ in before if id_ not in existing)
        self.learn(found)

    def learn(self, found: Iterable[tuple[int, str]]) -> None:
        """Cache names of this table with their ids; a name cached for the same id is replaced."""
        for id_, name in found:
            if self.names.get(id_, name) != name:
                self.forget([id_])
            self.ids[name] = id_
            self.names[id_] = name

    def forget(self, ids: Iterable[int]) -> None:
        """Forget names by their ids, because they were deleted."""
        for id_ in list(ids):
            self.forgotten += 1
            name = self.names.pop(id_, "")
            if self.ids.get(name) == id_:
                del self.ids[name]

    async def make(self, tx: Transaction, names: Collection[str], now: float) -> tuple[dict[str, int], int]:
        """Insert the given names that are missing in this table; return the ids of all given names, to be
        cached after the commit, and the number of new names.
        """
        new = await self._insert_names(tx, names, now)
        found = {name: id_ for id_, name in await self._find(tx, [(name,) for name in names])}
        if len(found) < len(set(names)):  # another process has used the ids that this transaction chose
            raise Conflict("names were being made by another process")
        return found, new

    async def look_up(self, database: Database, names: Iterable[str]) -> list[str]:
        """Read the ids of the given names of this table into the cache; return the names that are missing."""
        missing = sorted({name for name in names if name not in self.ids})
        if not missing:
            return missing
        async with database.read_single() as tx:
            found = await self._find(tx, [(name,) for name in missing])
        await self.agree(database, found)
        existing = {name for _, name in found}
        return [name for name in missing if name not in existing]

    async def agree(self, database: Database, found: Sequence[tuple[int, str]]) -> None:
        """Add names of this table and their database ids to the cache; if they contradict the cache, read all
        names from the database again."""
        if any(self.names.get(id_, name) != name for id_, name in found):
            await self._again(database)
        else:
            self.learn(found)

    async def ensure(self, database: Database, names: Iterable[str], now: float) -> None:
        """Create the names that do not exist yet, and remember the ids of all."""
        missing = await self.look_up(database, names)
        if missing:
            async with database.write() as tx:
                made, _ = await self.make(tx, missing, now)
            self.learn((id_, name) for name, id_ in made.items())

    async def _insert_names(self, tx: Transaction, names: Collection[str], now: float) -> int:
        return len(await self._insert(tx, [(name,) for name in names], now=now))


class ClassNames(NumberedNames):
    """Resource class names. Standard classes have fixed ids; custom classes begin at FIRST_CUSTOM_CLASS."""

    insert = sql("""
        INSERT INTO resource_classes (id, name, created_at, updated_at)
        SELECT n.id, n.called, :NOW, :NOW
        FROM {n: id int, called str} WHERE true ORDER BY n.id ON CONFLICT DO NOTHING RETURNING id
    """)
    _last = sql("""
        SELECT max(taken.id) FROM (SELECT max(id) AS id FROM resource_classes
        UNION ALL SELECT number FROM changes WHERE id = :numbers) taken
    """)

    async def _insert_names(self, tx: Transaction, names: Collection[str], now: float) -> int:
        [(last,)] = await self._last(tx, numbers=CLASS_NUMBERS)
        first = max(FIRST_CUSTOM_CLASS, last + 1)
        # A fail-over right after the first start may have lost standard classes.
        lost = sorted((STANDARD_CLASSES[name], name) for name in names if name in STANDARD_CLASSES)
        custom = sorted(name for name in names if name not in STANDARD_CLASSES)
        return len(await self.insert(tx, [*lost, *enumerate(custom, first)], now=now))


class Book:
    """All cached names of placement: resource classes, traits, aggregates, projects, users and consumer
    types; and the version of the data that rules of features keep in memory.

    The version is in the row of the last change number, which every commit updates: a process with outdated
    data detects this at its next commit; its rules read the data again before the transaction is repeated.
    """

    def __init__(self) -> None:
        self.edition = 0  # version of the cached names of resource classes and traits
        again = self.read_again
        self.classes = ClassNames(again, "resource_classes")
        self.traits = NumberedNames(again, "traits")
        self.aggregates = NumberedNames(again, "aggregates", "uuid")
        self.projects = NumberedNames(again, "projects", "external_id")
        self.users = NumberedNames(again, "users", "external_id")
        self.types = NumberedNames(again, "consumer_types")
        self.rules_edition = -1

    def forget(self) -> None:
        """Make all cached names be read again before use: after a fail-over, names may be lost, and their ids
        given to other names.
        """
        self.edition = self.rules_edition = -1  # older than any version, so the next use reads them
        for names in (self.classes, self.traits, self.aggregates, self.projects, self.users, self.types):
            names.ids.clear()
        for names in (self.projects, self.users, self.types):
            names.names.clear()

    @property
    def reading(self) -> tuple[int, ...]:
        """Return the versions of the cached names of resource classes and traits, and of the data of rules;
        the value changes whenever a cache is replaced.
        """
        return self.edition, self.rules_edition, self.classes.forgotten, self.traits.forgotten

    async def open(self, database: Database, now: float) -> None:
        """Store the standard resource classes and traits, and cache all stored names; names of projects and
        users are cached when they are used.
        """
        async with database.write() as tx:
            await _OPEN(tx, [(NAMES_EDITION,), (CLASS_NUMBERS,), (AGGREGATES_TURN,)])
            await ClassNames.insert(
                tx, [(number, name) for name, number in STANDARD_CLASSES.items()], now=now
            )
            await self.traits.make(tx, STANDARD_TRAITS, now)
        await self.read_again(database)

    async def read_again(self, database: Database) -> None:
        """Read all names again, because an id was unknown or the database may have lost commits."""
        async with database.read() as tx:
            await self.read_all(tx)

    async def read_all(self, tx: Transaction) -> None:
        """Read all names within a transaction."""
        # Read the version before the names, so that the names are at least of this version.
        [(edition,)] = await _EDITION(tx, id=NAMES_EDITION)
        for names in (self.classes, self.traits, self.aggregates):
            await names.read_all(tx)
        self.rules_edition = max(self.rules_edition, await rules_edition(tx))
        self.edition = max(self.edition, edition)

    def check_rules(self, edition: int) -> None:
        """Raise Conflict if `edition`, the version of the data of rules in the database, is not the version
        that this process knows: before the retry, rules read their data again.
        """
        if edition != self.rules_edition:
            self.rules_edition = edition
            raise Conflict("data of a rule was changed meanwhile")

    async def turn_to(self, tx: Transaction, edition: int) -> None:
        """Read the names of resource classes and traits again if `edition`, their version in the database, is
        newer."""
        if edition > self.edition:
            await self.read_all(tx)

    async def new_edition(self, tx: Transaction) -> int:
        """Increase and return the version of the names of resource classes and traits, because this
        transaction changes such a name."""
        [(edition,)] = await _NEW_EDITION(tx, id=NAMES_EDITION)
        return int(edition)

    async def know_owners(self, database: Database, claims: Collection[ConsumerClaim], now: float) -> None:
        """Create the projects, users and consumer types of claims that do not exist yet."""
        await self.projects.ensure(database, {claim.project for claim in claims}, now)
        await self.users.ensure(database, {claim.user for claim in claims}, now)
        types = {claim.type for claim in claims if claim.type is not None}
        if any(claim.keep for claim in claims):
            types.update(HOLDER_TYPES)
        await self.types.ensure(database, types, now)

    async def know_contents(
        self, database: Database, providers: Collection[ProviderReport], now: float
    ) -> None:
        """Create the classes, traits and aggregates of reported providers that do not exist yet."""
        await self.classes.ensure(database, {name for each in providers for name in each.inventories}, now)
        await self.traits.ensure(database, {name for each in providers for name in each.traits}, now)
        await self.aggregates.ensure(
            database, {uuid for provider in providers for uuid in provider.aggregates}, now
        )

    def known(self, kind: str, name: str) -> bool:
        """Return whether a name is cached or standard. After a fail-over the cache is empty."""
        if kind == "resource class":
            return name in self.classes.ids or name in STANDARD_CLASSES
        return name in self.traits.ids or name in STANDARD_TRAITS

    async def class_names(self, tx: Transaction, ids: Collection[int]) -> dict[int, str]:
        """Return a mapping of ids to the names of all resource classes, read again if a given id is not
        cached."""
        if any(id_ not in self.classes.names for id_ in ids):
            await self.classes.read_all(tx)
        return self.classes.names


_TABLES = {"resource class": "resource_classes", "trait": "traits"}
_USED = {
    "resource class": "EXISTS (SELECT 1 FROM inventories u WHERE u.resource_class_id = t.id)",
    "trait": "EXISTS (SELECT 1 FROM resource_provider_traits u WHERE u.trait_id = t.id)",
}


class StoredName(NamedTuple):
    """The name of a resource class or trait, as stored in the database."""

    id: int
    name: str
    updated: float
    used: bool  # whether a provider has it; False if the caller did not request this

    @property
    def named(self) -> Named:
        return Named(name=self.name, updated=self.updated)


@cache
def _entries(kind: NameKind, among: bool, used: bool, locking: bool) -> Statement:
    return sql(f"""
        SELECT t.id, t.name, t.updated_at, {_USED[kind] if used else "false"} AS used
        FROM {_TABLES[kind]} t {"JOIN {n: called str} ON n.called = t.name" if among else ""} ORDER BY t.id
        {"FOR UPDATE OF t" if locking else ""}
    """)


_DROPPED = {kind: sql(f"DELETE FROM {table} WHERE id = :id") for kind, table in _TABLES.items()}
RENAME_CLASS = sql("""
    UPDATE resource_classes SET name = :called, updated_at = CAST(:now AS double precision) WHERE id = :id
""")
_GIVEN_OUT = sql("UPDATE changes SET number = :id WHERE id = :numbers AND number < CAST(:id AS bigint)")
# Roots of the trees with inventory of a resource class.
ROOTS_WITH = sql("""
    SELECT DISTINCT r.uuid FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id WHERE i.resource_class_id = :id ORDER BY r.uuid
""")


def names_of(book: Book, kind: NameKind) -> NumberedNames:
    """Return the ids of resource classes or of traits."""
    return book.classes if kind == "resource class" else book.traits


async def entries(
    tx: Transaction,
    kind: NameKind,
    names: Collection[str] | None = None,
    *,
    used: bool = False,
    locking: bool = False,
) -> Sequence[StoredName]:
    """Return the given resource classes or traits (`names`; None: all) with their ids and, if `used`, with
    whether a provider has them. With `locking`, no other transaction can begin to use these names.
    """
    statement = _entries(kind, names is not None, used, locking)
    rows = await statement(tx, [(name,) for name in dict.fromkeys(names or ())])
    return [StoredName(*row) for row in rows]


async def drop_name(tx: Transaction, kind: NameKind, entry: StoredName) -> None:
    """Delete a resource class or trait; the id of a class is never used again."""
    await _DROPPED[kind](tx, id=entry.id)
    if kind == "resource class":  # record the id as used, so that it is never used again
        await _GIVEN_OUT(tx, id=entry.id, numbers=CLASS_NUMBERS)
