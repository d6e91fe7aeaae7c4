"""Manages PostgreSQL logins with one database each. Only a verifier of each password is sent, so that no
server can use or log the password.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import exc, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from bus.errors import Unavailable
from bus.masking import masked
from bus.sql.addresses import parse_url
from bus.sql.postgres import DatabaseServers, secured

_ROUNDS = 4096  # the server's default


def scram_verifier(password: str, salt: bytes) -> str:
    """Return PostgreSQL's SCRAM verifier of a password (RFC 5803); no client can log in with the verifier."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ROUNDS)
    client = hmac.digest(salted, b"Client Key", "sha256")
    server = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode() for part in (salt, hashlib.sha256(client).digest(), server)]
    return f"SCRAM-SHA-256${_ROUNDS}:{parts[0]}${parts[1]}:{parts[2]}"


@dataclass(frozen=True)
class LoginLimits:
    """Limits of a PostgreSQL login. A session of the login can change the time limits, but no other limit."""

    connections: int
    statement_seconds: float
    transaction_seconds: float
    lock_seconds: float
    temp_bytes: int  # size of temporary files; only superusers can set this limit


class Logins:
    """Manages the logins of a PostgreSQL server as a superuser or database creator. Each login has one
    database, which has the same name.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def has_login(self, name: str) -> bool:
        return await self._is("SELECT 1 FROM pg_roles WHERE rolname = :name", name)

    async def has_database(self, name: str) -> bool:
        return await self._is("SELECT 1 FROM pg_database WHERE datname = :name", name)

    async def make(self, name: str, password: str, limits: LoginLimits) -> None:
        """Create or alter a login, its limits and its database, which no other login may connect to."""
        quoted = quoted_name(name)
        verifier = scram_verifier(password, secrets.token_bytes(16))
        is_superuser = await self._is(
            "SELECT 1 FROM pg_roles WHERE rolname = :name AND rolsuper", await self._user()
        )
        do, attributes = "CREATE", "LOGIN NOCREATEDB NOCREATEROLE NOSUPERUSER NOREPLICATION"
        if await self.has_login(name):
            do = "ALTER"
            if not is_superuser:  # PostgreSQL permits only superusers to write NOSUPERUSER and NOREPLICATION
                attributes = "LOGIN NOCREATEDB NOCREATEROLE"
        await self._do(
            f"{do} ROLE {quoted} {attributes} CONNECTION LIMIT {limits.connections} PASSWORD '{verifier}'"
        )
        for parameter, seconds in (
            ("statement_timeout", limits.statement_seconds),
            ("idle_in_transaction_session_timeout", limits.transaction_seconds),
            ("lock_timeout", limits.lock_seconds),
        ):
            await self._do(f"ALTER ROLE {quoted} SET {parameter} = {round(seconds * 1000)}")
        if is_superuser:
            await self._do(f"ALTER ROLE {quoted} SET temp_file_limit = '{limits.temp_bytes // 1024}kB'")
        if not await self.has_database(name):
            await self._do(f"CREATE DATABASE {quoted}")
        await self._do(f"REVOKE ALL ON DATABASE {quoted} FROM PUBLIC")
        await self._do(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {quoted} TO {quoted}")

    async def close_to_public(self, database: str) -> list[str]:
        """Revoke all rights of the role PUBLIC on this database; return the logins that could connect only
        because of PUBLIC. The caller keeps its rights. A caller that does not own the database changes
        nothing.
        """
        open_to_all = (
            "SELECT 1 FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) AS acl"
            " WHERE datname = :name AND acl.grantee = 0 AND pg_has_role(datdba, 'USAGE')"
        )
        if not await self._is(open_to_all, database):
            return []
        quoted, before = quoted_name(database), await self._logins_of(database)
        await self._do(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {quoted} TO CURRENT_USER")
        await self._do(f"REVOKE ALL ON DATABASE {quoted} FROM PUBLIC")
        return sorted(before - await self._logins_of(database))

    async def _logins_of(self, database: str) -> set[str]:
        found = await self._connection.execute(
            text(
                """
                SELECT rolname FROM pg_roles WHERE rolcanlogin
                AND has_database_privilege(rolname, CAST(:name AS text), 'CONNECT')
                """
            ),
            {"name": database},
        )
        return {login for (login,) in found}

    async def _user(self) -> str:
        return str((await self._connection.execute(text("SELECT current_user"))).scalar_one())

    async def enters(self, name: str) -> list[str]:
        """Return the databases to which this login may connect, other than its own database; the cause is
        usually a right of the role PUBLIC.
        """
        found = await self._connection.execute(
            text(
                """
                SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate
                AND datname <> :name
                AND has_database_privilege(CAST(:name AS name), datname, 'CONNECT') ORDER BY datname
                """
            ),
            {"name": name},
        )
        return [database for (database,) in found]

    async def drop(self, name: str) -> None:
        """Delete a login, and its database with all contents."""
        await self._do(f"DROP DATABASE IF EXISTS {quoted_name(name)} WITH (FORCE)")
        await self._do(f"DROP ROLE IF EXISTS {quoted_name(name)}")

    async def _is(self, question: str, name: str) -> bool:
        return (await self._connection.execute(text(question), {"name": name})).first() is not None

    async def _do(self, statement: str) -> None:
        await self._connection.exec_driver_sql(statement)


@asynccontextmanager
async def logins(url: str) -> AsyncIterator[Logins]:
    """Connect to the PostgreSQL server at this URL, and yield an object that manages its logins."""
    async with administering(url) as connection:
        yield Logins(connection)


@asynccontextmanager
async def administering(url: str) -> AsyncIterator[AsyncConnection]:
    """Connect to a database, to execute statements outside of transactions. If the connection or a statement
    fails, raise Unavailable.
    """
    parsed = parse_url(url)
    address, security = secured(parsed.url.set(drivername="postgresql+asyncpg"))
    connecting = {"async_creator_fn": DatabaseServers(parsed.hosts).connect, **security}
    engine = create_async_engine(
        address, isolation_level="AUTOCOMMIT", hide_parameters=True, connect_args=connecting
    )
    try:
        async with engine.connect() as connection:
            yield connection
    except (exc.DBAPIError, OSError) as problem:
        why = problem.orig if isinstance(problem, exc.DBAPIError) and problem.orig else problem
        raise Unavailable(f"{masked(url)}: {why}") from None
    finally:
        await engine.dispose()


def quoted_name(name: str) -> str:
    """Return the name of an object as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
