"""A PostgreSQL standby for tests: made with pg_basebackup, cut off from its primary, promoted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy.engine import make_url

from deploy.postgres import Postgres, PostgresBinaries

NAME = "standby"  # in synchronous_standby_names


class Standby(Postgres):
    """A standby of another private server. Both listen on different ports of this machine."""

    def __init__(self, directory: Path, primary: Postgres, options: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, options=options)
        self._primary = primary

    @property
    def password(self) -> str:
        return self._primary.password

    def _initialise(self, binaries: PostgresBinaries) -> None:
        primary = self._primary
        source = f"host=127.0.0.1 port={primary.port} user={primary.user} password={primary.password}"
        self._run(
            [
                str(binaries.postgres.with_name("pg_basebackup")), f"--pgdata={self._data}",
                f"--dbname={source} application_name={NAME}", "--write-recovery-conf", "--checkpoint=fast",
                "--no-sync",
            ]
        )  # fmt: skip

    async def cut_off(self) -> None:
        """Stop replication from the primary, as after a network failure: later commits are missing here."""
        await execute(self, "ALTER SYSTEM SET primary_conninfo = ''")
        await execute(self, "SELECT pg_reload_conf()")

    async def promote(self) -> None:
        """Become the primary, on a new timeline; return when that is done."""
        await execute(self, "SELECT pg_promote(true, 30)")


async def execute(server: Postgres, statement: str, *values: Any) -> Any:
    """Execute a statement on this server, and return its first value."""
    connection = await asyncpg.connect(server.url.replace("+asyncpg", ""))
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


def url_of_both(
    first: Postgres | int, second: Postgres, more: str = "?target_session_attrs=read-write"
) -> str:
    """Return the URL of two servers (or one, and the port of another program) in libpq's form."""
    url, port = make_url(second.url), first if isinstance(first, int) else first.port
    at = f"{url.username}:{url.password}@127.0.0.1:{port},127.0.0.1:{second.port}"
    return f"postgresql://{at}/{url.database}{more}"
