"""Resource classes and traits as clients list, make, rename and drop them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from bus.names import Named, NameKind
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from placement_worker.schema import CLASS_NUMBERS
from placement_worker.store.numbered_names import Book, NumberedNames

_TABLES = {"resource class": "resource_classes", "trait": "traits"}
_USED = {
    "resource class": "EXISTS (SELECT 1 FROM inventories u WHERE u.resource_class_id = t.id)",
    "trait": "EXISTS (SELECT 1 FROM resource_provider_traits u WHERE u.trait_id = t.id)",
}


@dataclass(frozen=True)
class StoredName:
    """A name as it is stored."""

    id: int
    name: str
    updated: float
    used: bool  # by some provider; only where it was asked for

    @property
    def named(self) -> Named:
        return Named(name=self.name, updated=self.updated)


@cache
def _entries(kind: NameKind, among: bool, used: bool, locking: bool) -> Statement:
    return Statement(
        f"SELECT t.id, t.name, t.updated_at, {_USED[kind] if used else 'false'} AS used"
        f" FROM {_TABLES[kind]} t{' JOIN {n} ON n.called = t.name' if among else ''} ORDER BY t.id"
        f"{' FOR UPDATE OF t' if locking else ''}",
        **({"called": str} if among else {}),
    )


@cache
def _drop(kind: NameKind) -> Statement:
    return Statement(f"DELETE FROM {_TABLES[kind]} WHERE id = :id")


_RENAME = Statement(
    "UPDATE resource_classes SET name = :called, updated_at = CAST(:now AS double precision) WHERE id = :id"
)
_GIVEN_OUT = Statement(
    "UPDATE changes SET number = :id WHERE id = :numbers AND number < CAST(:id AS bigint)",
)
_ROOTS = Statement(
    """
    SELECT DISTINCT r.uuid FROM inventories i JOIN resource_providers p ON p.id = i.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id WHERE i.resource_class_id = :id ORDER BY r.uuid
    """
)


def names_of(book: Book, kind: NameKind) -> NumberedNames:
    return book.classes if kind == "resource class" else book.traits


async def entries(
    tx: Transaction,
    kind: NameKind,
    names: Collection[str] | None = None,
    *,
    used: bool = False,
    locking: bool = False,
) -> Sequence[StoredName]:
    """Return the names, or all, by number. If locked, no transaction can begin to use one."""
    statement = _entries(kind, names is not None, used, locking)
    rows = await statement(tx, [(name,) for name in dict.fromkeys(names or ())])
    return [StoredName(row["id"], row["name"], row["updated_at"], bool(row["used"])) for row in rows]


async def rename(tx: Transaction, entry: StoredName, to: str, now: float) -> None:
    await _RENAME(tx, id=entry.id, called=to, now=now)


async def drop(tx: Transaction, kind: NameKind, entry: StoredName) -> None:
    await _drop(kind)(tx, id=entry.id)
    if kind == "resource class":  # its number is never given out again
        await _GIVEN_OUT(tx, id=entry.id, numbers=CLASS_NUMBERS)


async def roots_with(tx: Transaction, class_id: int) -> list[str]:
    """Return the roots of the trees with inventory of this class."""
    return [root for (root,) in await _ROOTS(tx, id=class_id)]
