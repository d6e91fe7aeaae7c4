"""Fixtures for tests that run on each supported database."""

import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from berth.features import packages
from berth.operations import cells, host_states
from berth.operations.audit import placement_breaches
from bus.local import LocalBroker, LocalTransport
from bus.rabbit import RabbitTransport
from bus.sql.database import Database
from bus.sql.migrations import migrate
from placement_worker import Placement
from tests.support import midway
from tests.support.buses import Connect
from tests.support.http_placement import HttpPlacement, an_api
from tests.support.placement_builders import a_placement, keeps_its_index
from tests.support.servers import a_database
from tests.support.virtual_time import TurnedClock

EACH_DIALECT = [
    pytest.param("sqlite file", id="file"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.services),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "opening" in metafunc.fixturenames:
        kinds = getattr(metafunc.module, "DATABASES", EACH_DIALECT)
        metafunc.parametrize("opening", kinds, indirect=True)


@pytest.fixture
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return arguments for Database, which open the same database each time; in memory, a new database."""
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
    """Return a function that opens the database as another process does."""
    opened: list[Database] = []

    def open_(**more: Any) -> Database:
        opened.append(Database(**(opening | more)))
        return opened[-1]

    yield open_
    for database in opened:
        await database.close()


@pytest.fixture
async def database(open_database: Callable[..., Database]) -> Database:
    """Yield an empty database with its tables."""
    made = open_database()
    if made.dialect == "postgresql":
        from sqlalchemy import text

        async with made.write() as tx:
            await tx.execute(text(f'CREATE SCHEMA "{made.namespace}"'))
    return made


# Placement on each type of database


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def migrated_url(postgres: Any) -> AsyncIterator[str]:
    """Yield the URL of a database with placement's tables; copying it is faster than creating the tables."""
    async with a_database(postgres) as url:
        database = Database(url, namespace="placement")
        await migrate(database, *packages("placement"))
        await database.close()
        yield url


@pytest.fixture
async def placement_url(postgres: Any, migrated_url: str) -> AsyncIterator[str]:
    async with a_database(postgres, like=migrated_url) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/placement.db"
    return str(request.getfixturevalue("placement_url"))


@pytest.fixture
def turned() -> TurnedClock:
    return TurnedClock(1_000_000.0)


@pytest.fixture
async def placement(url: str, turned: TurnedClock) -> AsyncIterator[Placement]:
    async with a_placement(url, turned.clock) as one:
        yield one
        assert await placement_breaches(one.database) == []
        await keeps_its_index(one)


# Placement with its HTTP API


@pytest.fixture
async def api(url: str) -> AsyncIterator[HttpPlacement]:
    async with an_api(url) as api:
        yield api


@pytest.fixture
async def near() -> AsyncIterator[HttpPlacement]:
    """Yield a Placement API for tests that do not depend on the type of database."""
    async with an_api("sqlite+aiosqlite://") as near:
        yield near


@pytest.fixture
def gate() -> midway.Gate:
    return midway.Gate()


# Connections to RabbitMQ, and to each type of broker


@pytest.fixture
async def transport(amqp_url: str, bus_name: str) -> AsyncIterator[RabbitTransport]:
    transport = RabbitTransport(amqp_url, exchange=bus_name)
    await transport.open()
    yield transport
    await transport.close()


@pytest.fixture(params=["local", pytest.param("rabbit", marks=pytest.mark.services)])
def connect(request: pytest.FixtureRequest) -> Connect:
    if request.param == "local":
        broker = LocalBroker()
        return lambda: LocalTransport(broker)
    url, name = request.getfixturevalue("amqp_url"), request.getfixturevalue("bus_name")
    return lambda: RabbitTransport(url, exchange=name)


@pytest.fixture
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query the health of hosts without waiting seconds for an answer: no scheduler runs in the test."""
    for module in (cells, host_states):
        monkeypatch.setattr(module, "HEALTH_SECONDS", 0.01)
