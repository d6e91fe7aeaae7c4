"""Connections to PostgreSQL: SQLAlchemy pools them, but statements are executed by asyncpg directly, which
takes a fifth of the time.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import asyncpg
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from bus.clock import monotonic
from bus.sql.addresses import DatabaseAddress
from bus.sql.failures import READ_ONLY, sqlstate
from bus.sql.servers import FAILURES, DatabaseServers, ServerSession

FILES = ("sslrootcert", "sslcert", "sslkey")
MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_VERIFIES = ("verify-ca", "verify-full")


def secured(address: URL) -> tuple[URL, dict[str, Any]]:
    """Return a database URL without its TLS parameters, and asyncpg's options with the same meaning.

    Without certificate files asyncpg uses libpq's defaults: PGSSLROOTCERT, ~/.postgresql/root.crt.
    """
    options = {name: str(address.query[name]) for name in ("ssl", "sslmode", *FILES) if name in address.query}
    if not options:
        return address, {}
    plain = address.difference_update_query(list(options))
    mode = options.get("sslmode") or options.get("ssl", "")
    if mode not in MODES:
        raise ValueError(f"sslmode={mode}: there are {', '.join(MODES)}")
    if not any(name in options for name in FILES):
        return plain, {"ssl": mode}
    if mode not in ("require", *_VERIFIES):
        raise ValueError(f"sslmode={mode} needs no certificates: use require, verify-ca or verify-full")
    return plain, {"ssl": _context(mode, *(options.get(name) for name in FILES))}


def _context(mode: str, root: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=root)
    context.check_hostname = mode == "verify-full"
    if mode == "require" and root is None:
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


CONNECT_SECONDS = 10.0

# SQLSTATEs after which a connection cannot be used any more; a new connection may lead to another server.
_CUT_OFF = ("08", "57P", "25P03", "25P04", "26", READ_ONLY)
# Other exceptions with the same meaning. asyncpg raises InternalClientError if the server has ended the
# session, but has not closed the connection yet.
_LAST_WORDS = (asyncpg.InternalClientError, OSError)

WRITE = "BEGIN"
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


async def roll_back(driver: asyncpg.Connection) -> None:
    """Roll back a transaction; ignore errors, because the server rolls back when a connection is lost."""
    try:
        await driver.execute("ROLLBACK")
    except FAILURES:  # not raised: the caller raises the error that made the rollback necessary
        driver.terminate()
    except BaseException:  # such as a cancellation during the rollback
        driver.terminate()
        raise


class PostgresPool:
    """A pool of connections to one database. When one connection breaks, all older connections are discarded.

    So after a restart of the server no stale connection is used, and after a silent network failure only one
    statement waits for the time-out.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        namespace: str,
        statement_seconds: float | None,
        pooled: Mapping[str, Any],
        on_new_history: Callable[[], None],
    ) -> None:
        self._broke_at = 0.0
        self.servers = DatabaseServers(address.hosts, on_new_history)
        url, security = secured(address.url)
        settings = {
            "application_name": f"berth {namespace}".strip(),
            "jit": "off",  # our statements are short; compiling one costs more than running it
            "random_page_cost": "1.1",  # pages are cached: prefer an index to reading a whole table
            "idle_in_transaction_session_timeout": "60s",  # release the locks of a process that hangs
            # Override time limits of the login, which must not affect migrations. asyncpg's `command_timeout`
            # limits berth's other statements.
            "statement_timeout": "0",
            "lock_timeout": "0",
        }
        self._search_path = f'"{namespace}"' if namespace else ""
        if namespace:
            settings["search_path"] = self._search_path
        self.engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg"),
            isolation_level="AUTOCOMMIT",
            connect_args={
                "async_creator_fn": self._open,
                "timeout": CONNECT_SECONDS,
                "command_timeout": statement_seconds,
                "server_settings": settings,
                **security,
            },
            **pooled,
        )
        self._refused: type[Exception] = self.engine.dialect.loaded_dbapi.Error  # base class of errors
        event.listen(self.engine.sync_engine, "connect", self._born)
        event.listen(self.engine.sync_engine, "checkout", self._check)
        event.listen(self.engine.sync_engine, "handle_error", self._notice)

    async def _open(self, **options: Any) -> ServerSession:
        """Return a new connection. Raise ConnectionError if a pooler ignored the connection's schema: several
        workers would share tables.
        """
        session = await self.servers.connect(**options)
        if self._search_path:
            found = await session.fetchval("SELECT current_setting('search_path')")
            if found != self._search_path:
                session.terminate()
                raise ConnectionError(
                    f"its search_path is {found} instead of {self._search_path}: a pooler ignores settings "
                    "of connections, and berth works only with PostgreSQL itself (docs/scale.md)"
                )
        return session

    async def connect(self) -> PoolProxiedConnection:
        try:
            return await greenlet_spawn(self.engine.sync_engine.raw_connection)
        except self._refused as error:
            raise ConnectionError(*error.args) from error

    def connection_on(self, pooled: PoolProxiedConnection) -> AsyncConnection:
        return AsyncConnection(self.engine, Connection(self.engine.sync_engine, pooled))

    def broken(self, driver: asyncpg.Connection, error: Exception) -> bool:
        """Return whether this error broke the database connection; if so, the connection pool also discards
        all connections opened before."""
        state = sqlstate(error)
        if isinstance(error, _LAST_WORDS) or state.startswith(_CUT_OFF):
            self._broke_at = monotonic()
            driver.terminate()
        return bool(driver.is_closed())

    def _born(self, connection: Any, record: Any) -> None:
        record.info["born"] = monotonic()

    def _check(self, connection: Any, record: Any, proxy: Any) -> None:
        driver = connection.driver_connection
        if record.info["born"] <= self._broke_at:
            driver.terminate()
        if driver.is_closed():  # asyncpg has noticed that the server closed the connection
            raise exc.DisconnectionError

    def _notice(self, context: ExceptionContext) -> None:
        """If an error broke SQLAlchemy's connection, inform SQLAlchemy, and discard older connections."""
        driver = getattr(context.connection and context.connection.connection, "driver_connection", None)
        original = context.original_exception
        driver_error = isinstance(original.__cause__, FAILURES)
        error = original.__cause__ if driver_error else original
        if driver is not None and isinstance(error, Exception) and self.broken(driver, error):
            context.is_disconnect = True
