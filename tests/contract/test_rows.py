"""Many rows in one statement: the same values arrive, and the same statements work, on both databases."""

import json
from typing import Any

import pytest
from sqlalchemy import text

from bus.sql.database import Database
from bus.sql.statement import Json, rows
from tests.support.databases import EVERY_WAY

DATABASES = EVERY_WAY

KINDS: list[tuple[Any, list[Any]]] = [
    (int, [0, -1, 2**62, None]),
    (float, [0.5, -1.25, 16, 1e300, 3.40282e38, None]),
    (str, ["", "it's", 'a "quoted" :word', "ünïcode ☃", "[1]", "null", "12", None]),
    (bool, [True, False, None]),
    (Json, ['{"text":"of mine"}', {"a": [1, None]}, [], "text", 7, None]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda part: getattr(part, "__name__", ""))
async def test_values_arrive_as_they_are(database: Database, kind: Any, values: list[Any]) -> None:
    n = rows(database.dialect, "n", at=int, value=kind)
    async with database.read() as tx:
        result = await tx.execute(text(f"SELECT n.value FROM {n} ORDER BY n.at"), n.bind(enumerate(values)))
        arrived = [row.value for row in result]
    if kind is Json and database.dialect == "sqlite":
        arrived = [None if value is None else json.loads(value) for value in arrived]
    assert arrived == values


async def test_a_float_divides_like_a_float(database: Database) -> None:
    n = rows(database.dialect, "n", whole=float)
    async with database.read() as tx:
        half = (await tx.execute(text(f"SELECT n.whole / 2 AS half FROM {n}"), n.bind([(1,)]))).scalar_one()
    assert half == 0.5


@pytest.fixture
async def things(database: Database) -> Database:
    async with database.write() as tx:
        await tx.execute(
            text(
                "CREATE TABLE things (id BIGINT, class TEXT, used BIGINT, ratio DOUBLE PRECISION, spec JSON,"
                " gone BOOLEAN, PRIMARY KEY (id, class))"
            )
        )
    return database


async def contents(database: Database, columns: str) -> list[tuple[Any, ...]]:
    async with database.read() as tx:
        result = await tx.execute(text(f"SELECT {columns} FROM things ORDER BY id, class"))
        return [tuple(row) for row in result]


async def test_insert_update_and_delete_by_rows(things: Database) -> None:
    many = rows(things.dialect, "many", id=int, cls=str, used=int, ratio=float, spec=Json, gone=bool)
    changes = rows(things.dialect, "change", id=int, cls=str, delta=int)
    doomed = rows(things.dialect, "doomed", id=int)
    async with things.write() as tx:
        await tx.execute(
            text(f"INSERT INTO things SELECT id, cls, used, ratio, spec, gone FROM {many}"),
            many.bind([(n, "VCPU", n, 1.5, {"n": n}, n % 2 == 0) for n in range(300)]),
        )
        changed = await tx.execute(
            text(
                f"UPDATE things SET used = used + change.delta, ratio = :ratio FROM {changes}"
                " WHERE things.id = change.id AND things.class = change.cls"
                " AND things.used + change.delta <= :most"
            ),
            changes.bind([(1, "VCPU", 10), (2, "VCPU", -2), (3, "DISK", 9), (4, "VCPU", 99)])
            | {"ratio": 2.0, "most": 50},
        )
        assert changed.rowcount == 2
        deleted = await tx.execute(
            text(f"DELETE FROM things WHERE id IN (SELECT id FROM {doomed})"),
            doomed.bind((n,) for n in range(5, 400)),
        )
        assert deleted.rowcount == 295
    assert await contents(things, "id, used, ratio") == [
        (0, 0, 1.5), (1, 11, 2.0), (2, 0, 2.0), (3, 3, 1.5), (4, 4, 1.5),
    ]  # fmt: skip


async def test_rows_that_were_there_already_can_be_told_from_new_ones(things: Database) -> None:
    n = rows(things.dialect, "n", id=int)
    insert = text(
        f"INSERT INTO things (id, class) SELECT n.id, 'X' FROM {n} WHERE true"
        " ON CONFLICT DO NOTHING RETURNING id"
    )
    async with things.write() as tx:
        await tx.execute(insert, n.bind([(1,), (2,)]))
        made = {row.id for row in await tx.execute(insert, n.bind([(2,), (3,)]))}
    assert made == {3}


async def test_no_rows_are_no_rows(things: Database) -> None:
    n = rows(things.dialect, "n", id=int, cls=str)
    async with things.write() as tx:
        inserted = text(f"INSERT INTO things (id, class) SELECT id, cls FROM {n}")
        assert (await tx.execute(inserted, n.bind([]))).rowcount == 0


@pytest.mark.parametrize("columns", [{}, {"a": bytes}, {"a b": int}])
def test_columns_that_cannot_be_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        rows("sqlite", "n", **columns)


def test_the_same_rows_are_made_once() -> None:
    assert rows("sqlite", "n", id=int) is rows("sqlite", "n", id=int)
    assert rows("sqlite", "n", id=int) is not rows("postgresql", "n", id=int)
