"""The databases of a Nova region on a private PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import asyncpg

from deploy.postgres import Postgres
from deploy.processes import Server


class NovaDatabases(Protocol):
    """A database server that Nova can use."""

    @property
    def server(self) -> Server: ...

    async def create(self, names: Iterable[str]) -> None: ...

    def url(self, name: str) -> str:
        """Return a database's URL with the driver that Nova uses."""
        ...


class PostgresNova:
    def __init__(self, server: Postgres) -> None:
        self.server = server

    async def create(self, names: Iterable[str]) -> None:
        connection = await asyncpg.connect(self.server.url.replace("+asyncpg", ""))
        try:
            for name in names:
                await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()

    def url(self, name: str) -> str:
        return f"{self.server.url.replace('+asyncpg', '+psycopg2').rpartition('/')[0]}/{name}"
