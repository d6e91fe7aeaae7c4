"""Every database a store may live in, for the tests that must hold on all of them."""

import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bus.database import Database
from placement_worker import Placement, breaches
from tests.doors import Door, a_door
from tests.racks import Wall, a_placement, keeps_its_index

KINDS = [
    pytest.param("sqlite file", id="file"),
    pytest.param("sqlite file inline", id="file-inline"),
    pytest.param("sqlite memory", id="memory"),
    pytest.param("sqlite memory inline", id="memory-inline"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.services),
]


@pytest.fixture(params=KINDS)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments for Database: the same database every time, in a memory a new one."""
    if request.param == "postgresql":
        return {"url": request.getfixturevalue("database_url"), "namespace": f"n-{secrets.token_hex(3)}"}
    where = "" if "memory" in request.param else f"/{tmp_path}/new/"
    return {
        "url": f"sqlite+aiosqlite://{where}",
        "namespace": "store" if where else "",
        "inline": "inline" in request.param,
    }


@pytest.fixture
async def open_database(opening: dict[str, Any]) -> AsyncIterator[Callable[..., Database]]:
    """One more process's view of the database."""
    opened: list[Database] = []

    def open_(**more: Any) -> Database:
        opened.append(Database(**(opening | more)))
        return opened[-1]

    yield open_
    for database in opened:
        await database.close()


@pytest.fixture
async def database(open_database: Callable[..., Database]) -> Database:
    """A database with its schema made and nothing in it."""
    made = open_database()
    if made.dialect == "postgresql":
        from sqlalchemy import text

        async with made.write() as tx:
            await tx.execute(text(f'CREATE SCHEMA "{made.namespace}"'))
    return made


# Placement, on each of the two databases it may live in


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/placement.db"
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def placement(url: str, wall: Wall) -> AsyncIterator[Placement]:
    async with a_placement(url, wall.clock) as one:
        yield one
        assert await breaches(one.database) == []
        await keeps_its_index(one)


# And behind its HTTP door


@pytest.fixture
async def door(url: str) -> AsyncIterator[Door]:
    async with a_door(url) as door:
        yield door


@pytest.fixture
async def near() -> AsyncIterator[Door]:
    """For what the database has no part in."""
    async with a_door("sqlite+aiosqlite://") as near:
        yield near
