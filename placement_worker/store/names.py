"""Names and their numbers: resource classes, traits, aggregates, projects, users, consumer types.

They are made in a transaction of their own, before the one that uses them, so that what is remembered here is
committed; a name too many does no harm.
"""

from collections.abc import Collection, Iterable

import os_resource_classes  # type: ignore[import-untyped]
import os_traits  # type: ignore[import-untyped]

from bus.database import Conflict, Database, Transaction
from placement_worker.schema import FIRST_CUSTOM_CLASS
from placement_worker.store.statement import Statement


class Names:
    """One table of names, remembered."""

    def __init__(self, table: str, column: str = "name") -> None:
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self._all = Statement(f"SELECT id, {column} FROM {table} ORDER BY id")
        self._find = Statement(
            f"SELECT t.id, t.{column} FROM {{n}} JOIN {table} t ON t.{column} = n.called", called=str
        )
        self._insert = Statement(
            f"INSERT INTO {table} ({column}, created_at, updated_at)"
            " SELECT n.called, CAST(:now AS double precision), CAST(:now AS double precision)"
            " FROM {n} WHERE true ORDER BY n.called ON CONFLICT DO NOTHING",
            called=str,
        )

    def has(self, names: Iterable[str]) -> bool:
        return all(name in self.ids for name in names)

    def forget(self) -> None:
        self.ids.clear()
        self.names.clear()

    async def read_all(self, tx: Transaction) -> None:
        self._learn(await self._all(tx))

    async def make(self, tx: Transaction, names: Collection[str], now: float) -> dict[str, int]:
        """Insert what is missing; only what is committed may be learned."""
        await self._insert_names(tx, names, now)
        found = {name: id_ for id_, name in await self._find(tx, [(name,) for name in names])}
        if len(found) < len(set(names)):  # another process took the numbers we chose
            raise Conflict("names were being made by another process")
        return found

    async def ensure(self, database: Database, names: Collection[str], now: float) -> None:
        """Know these names, making those that nobody has used yet."""
        missing = sorted({name for name in names if name not in self.ids})
        if not missing:
            return
        async with database.read() as tx:
            self._learn(await self._find(tx, [(name,) for name in missing]))
        missing = [name for name in missing if name not in self.ids]
        if missing:
            async with database.write() as tx:
                made = await self.make(tx, missing, now)
            self._learn((id_, name) for name, id_ in made.items())

    def _learn(self, found: Iterable[tuple[int, str]]) -> None:
        for id_, name in found:
            self.ids[name] = id_
            self.names[id_] = name

    async def _insert_names(self, tx: Transaction, names: Collection[str], now: float) -> None:
        await self._insert(tx, [(name,) for name in names], now=now)


class ClassNames(Names):
    """Resource classes: standard ones are numbered as listed, others from FIRST_CUSTOM_CLASS on."""

    _insert_numbered = Statement(
        "INSERT INTO resource_classes (id, name, created_at, updated_at)"
        " SELECT n.id, n.called, CAST(:now AS double precision), CAST(:now AS double precision)"
        " FROM {n} WHERE true ORDER BY n.id ON CONFLICT DO NOTHING",
        id=int,
        called=str,
    )
    _last = Statement("SELECT max(id) FROM resource_classes WHERE id >= :first")

    async def _insert_names(self, tx: Transaction, names: Collection[str], now: float) -> None:
        [(last,)] = await self._last(tx, first=FIRST_CUSTOM_CLASS)
        first = FIRST_CUSTOM_CLASS if last is None else last + 1
        await self._insert_numbered(tx, list(enumerate(sorted(names), first)), now=now)

    async def make_standard(self, tx: Transaction, now: float) -> None:
        await self._insert_numbered(tx, list(enumerate(os_resource_classes.STANDARDS)), now=now)


class Book:
    """All names placement goes by."""

    def __init__(self) -> None:
        self.classes = ClassNames("resource_classes")
        self.traits = Names("traits")
        self.aggregates = Names("aggregates", "uuid")
        self.projects = Names("projects", "external_id")
        self.users = Names("users", "external_id")
        self.types = Names("consumer_types")

    async def open(self, database: Database, now: float) -> None:
        """Make the standard names and read what there is. Projects and users are learned as they come."""
        async with database.write() as tx:
            await self.classes.make_standard(tx, now)
            await self.traits.make(tx, os_traits.get_traits(), now)
        await self.read_again(database)

    async def read_again(self, database: Database) -> None:
        async with database.read() as tx:
            for names in (self.classes, self.traits, self.aggregates):
                names.forget()
                await names.read_all(tx)

    def known(self, kind: str, name: str) -> bool:
        return name in (self.classes if kind == "resource class" else self.traits).ids

    async def class_names(self, tx: Transaction, ids: Collection[int]) -> dict[int, str]:
        """The names of these classes, reading again when another process has made one."""
        if any(id_ not in self.classes.names for id_ in ids):
            await self.classes.read_all(tx)
        return self.classes.names
