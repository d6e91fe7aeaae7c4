"""Fixtures for tests with tables of Nova, in PostgreSQL or in MariaDB."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from deploy.mariadb import MariaDB
from features.nova.tests.support.nova_database import NewDatabase
from tests.support.servers import _new_name, a_database


@asynccontextmanager
async def a_mariadb_database(server: MariaDB) -> AsyncIterator[str]:
    """Yield the SQLAlchemy URL of a new, empty MariaDB database, with the driver that Nova uses."""
    name = _new_name()
    engine = create_async_engine(make_url(server.url("berth")).set(drivername="mysql+aiomysql"))
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            yield server.url(name)
            await connection.exec_driver_sql(f"DROP DATABASE {name}")
    finally:
        await engine.dispose()


@pytest.fixture(params=["postgresql", "mariadb"])
def new_database(request: pytest.FixtureRequest) -> NewDatabase:
    """Return a function that makes an empty database for Nova's tables, in PostgreSQL or in MariaDB."""
    if request.param == "mariadb":
        return partial(a_mariadb_database, request.getfixturevalue("mariadb"))
    return partial(a_database, request.getfixturevalue("postgres"))
