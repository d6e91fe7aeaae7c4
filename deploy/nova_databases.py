"""The databases of a Nova region, on a private PostgreSQL or MariaDB."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import asyncpg

from deploy.mariadb import MariaDB
from deploy.postgres import Postgres


class RegionDatabases(Protocol):
    """A database server that Nova can use."""

    async def create(self, names: Iterable[str]) -> None:
        """Create empty databases with these names."""
        ...

    def url(self, name: str) -> str:
        """Return the URL of a database, with the database driver that Nova uses."""
        ...


class PostgresNova:
    def __init__(self, server: Postgres) -> None:
        self._server = server

    async def create(self, names: Iterable[str]) -> None:
        connection = await asyncpg.connect(self._server.url.replace("+asyncpg", ""))
        try:
            for name in names:
                await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()

    def url(self, name: str) -> str:
        return f"{self._server.url.replace('+asyncpg', '+psycopg2').rpartition('/')[0]}/{name}"


class MariaNova:
    """Nova's databases on a MariaDB, which created them when it started."""

    def __init__(self, server: MariaDB) -> None:
        self._server = server

    async def create(self, names: Iterable[str]) -> None:
        pass

    def url(self, name: str) -> str:
        return self._server.url(name)
