"""Connections to PostgreSQL: SQLAlchemy pools them, but statements are executed by asyncpg directly, which
takes a fifth of the time.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

import asyncpg
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from bus.clock import monotonic
from bus.sql.addresses import DatabaseAddress, DatabaseHost
from bus.sql.failures import READ_ONLY, sqlstate

# Connects to the primary of one PostgreSQL, and refuses a former primary after a fail-over.
#
# PostgreSQL begins a new timeline whenever a standby is promoted. So of two primaries of one system the one
# with the lower timeline is a former primary, which must not be used: its commits are lost. Each pool
# remembers the newest timeline that any host has shown; it refuses new connections to servers with a lower
# timeline, and closes the open connections.


log = logging.getLogger(__name__)

# The exceptions of asyncpg if a statement failed or could not be sent.
FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

HOST_SECONDS = 2.0  # limit for connecting to one of several hosts and reading its state
WATCH_SECONDS = 1.0  # between two checks for a promotion while there are no transactions, which check too

# A server in recovery has no current timeline; the timeline of its last checkpoint is a lower bound.
_STATE = """
    SELECT r.recovering, s.system_identifier AS system, CASE WHEN r.recovering THEN c.timeline_id
    ELSE CAST(CAST('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS bit(32)) AS integer)
    END AS timeline
    FROM (SELECT pg_is_in_recovery() AS recovering) r, pg_control_system() s, pg_control_checkpoint() c
"""
_UNKNOWN = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.UndefinedFunctionError,
)


class ServerHistory(NamedTuple):
    """The system identifier of a PostgreSQL cluster and a timeline of it. A promotion raises the timeline."""

    system: int
    timeline: int

    def __str__(self) -> str:
        return f"{self.system}/{self.timeline}"

    def replaces(self, other: "ServerHistory | None") -> bool:
        """Return whether a server with the history `other` is a former primary: this timeline is newer."""
        return other is not None and self.system == other.system and self.timeline > other.timeline


class ServerState(NamedTuple):
    """The state that a server reports when a connection is opened: whether it is a standby, and the history
    of its data.
    """

    recovering: bool  # True for a standby
    history: ServerHistory | None  # None: the login may not read the history


def refusal(state: ServerState, newest: ServerHistory | None, *, listed: bool) -> str:
    """Return why a server must not be used, or an empty text. `newest`: the newest known history. `listed`:
    the server is one of several hosts, and only their primary is used.
    """
    if listed and state.recovering:
        return "it is a standby"
    if newest is None or state.history is None:
        return ""
    if newest.replaces(state.history):
        why = f"timeline {newest.timeline} has started and it is at timeline {state.history.timeline}"
        return f"it is a former primary: {why}"
    if listed and state.history.system != newest.system:
        return "it belongs to another PostgreSQL cluster: its system identifier differs"
    return ""


def newest_of(states: Sequence[ServerState], known: ServerHistory | None) -> ServerHistory | None:
    """Return the newest history among the known history and the servers' histories."""
    for state in states:
        if known is None or (state.history is not None and state.history.replaces(known)):
            known = state.history
    return known


class ServerSession(asyncpg.Connection):  # type: ignore[misc]
    """A connection that knows the history of its server, which cannot change while the connection is open."""

    __slots__ = ("history",)
    history: ServerHistory | None


class DatabaseServers:
    """The servers of one database: a single host, or several hosts, one being the primary.

    After a fail-over, `on_new_history` is called before any connection to the new primary is used.
    """

    def __init__(
        self, hosts: Sequence[DatabaseHost] = (), on_new_history: Callable[[], None] = lambda: None
    ) -> None:
        self.hosts = tuple(hosts)
        self.newest: ServerHistory | None = None
        self._on_new_history = on_new_history
        self._primary: DatabaseHost | None = None
        self._options: dict[str, Any] = {}
        self._open: WeakSet[ServerSession] = WeakSet()
        self._others: dict[DatabaseHost, ServerSession] = {}  # connections that only check for a promotion
        self._checking = asyncio.Lock()
        self._calls = self._checked = 0  # calls of `confirm_primary`; the last call that a check answers

    async def connect(self, **options: Any) -> ServerSession:
        """Return a connection to the primary; raise ConnectionError if no server may be used."""
        if not self.hosts:
            session = await asyncpg.connect(connection_class=ServerSession, **options)
            return self._admitted(session, await _state(session))
        self._options = options
        if self._primary is not None:
            try:
                return self._admitted(*await self._ask(self._primary))
            except FAILURES:
                self._primary = None
        return await self._survey()

    async def watch(self) -> None:
        """Check the hosts that are not the primary for a promotion, once a second, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for host in self.hosts:
                    group.create_task(self._stay_connected(host))
                while True:
                    await asyncio.sleep(WATCH_SECONDS)
                    await self.confirm_primary()
        finally:
            for session in self._others.values():
                session.terminate()
            self._others.clear()

    async def confirm_primary(self) -> None:
        """Ask all connected database hosts except the primary whether they were promoted. If one was, all
        connections to the former primary are closed.

        Concurrent calls share a check, but a call returns only after a check that began later than the call.
        """
        if not self._others:
            return
        self._calls += 1
        call = self._calls
        async with self._checking:
            if self._checked < call:
                reached = self._calls
                await asyncio.gather(*(self._check(host) for host in tuple(self._others)))
                self._checked = reached

    async def _check(self, host: DatabaseHost) -> None:
        if session := self._others.get(host):
            try:
                self._learn((await _state(session)).history)
            except FAILURES:
                session.terminate()
                self._others.pop(host, None)

    async def _stay_connected(self, host: DatabaseHost) -> None:
        while True:
            if host not in self._others and self._primary not in (None, host):
                with suppress(*FAILURES):
                    session, state = await self._ask(host)
                    self._others[host] = session
                    self._learn(state.history)
            await asyncio.sleep(WATCH_SECONDS)

    async def _survey(self) -> ServerSession:
        """Connect to all hosts in parallel; return the connection to the primary with the newest history."""
        found: dict[DatabaseHost, tuple[ServerSession, ServerState]] = {}
        why: dict[DatabaseHost, str] = {}

        async def ask(host: DatabaseHost) -> None:
            try:
                found[host] = await self._ask(host)
            except FAILURES as error:
                why[host] = " ".join(str(error).split()) or "no answer"

        chosen: ServerSession | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for host in self.hosts:
                    group.create_task(ask(host))
            newest = newest_of([state for _, state in found.values()], self.newest)
            for host in self.hosts:
                if host not in found:
                    continue
                session, state = found[host]
                if not (unfit := refusal(state, newest, listed=True)):
                    chosen = self._admitted(session, state)
                    self._primary = host
                    return chosen
                why[host] = unfit
            self._learn(newest)
        finally:
            for session, _ in found.values():
                if session is not chosen:
                    session.terminate()
        raise ConnectionError(_reasons(why))

    async def _ask(self, host: DatabaseHost) -> tuple[ServerSession, ServerState]:
        """Return a connection to this host and the server's state."""
        session: ServerSession | None = None
        try:
            async with asyncio.timeout(HOST_SECONDS):
                options = {**self._options, "host": host.name, "port": host.port}
                session = await asyncpg.connect(connection_class=ServerSession, **options)
                return session, await _state(session)
        except BaseException:
            if session is not None:
                session.terminate()
            raise

    def _admitted(self, session: ServerSession, state: ServerState) -> ServerSession:
        if why := refusal(state, self.newest, listed=bool(self.hosts)):
            session.terminate()
            raise ConnectionError(why)
        self._learn(state.history)
        session.history = state.history
        self._open.add(session)
        return session

    def _learn(self, history: ServerHistory | None) -> None:
        """Remember a newer history, and close all connections to servers with an older one."""
        before = self.newest
        if history is None or history == before or (before is not None and before.replaces(history)):
            return
        if before is not None and before.system != history.system and self.hosts:
            return
        self.newest = history
        if before is None:
            return
        log.warning("the database has started timeline %d: servers without it are refused", history.timeline)
        self._primary = None
        for session in list(self._open):
            session.terminate()
        self._open.clear()
        self._on_new_history()


async def _state(session: ServerSession) -> ServerState:
    try:
        row = await session.fetchrow(_STATE, timeout=HOST_SECONDS)
    except _UNKNOWN:
        recovering = await session.fetchval("SELECT pg_is_in_recovery()", timeout=HOST_SECONDS)
        return ServerState(recovering, None)
    return ServerState(row["recovering"], ServerHistory(row["system"], row["timeline"]))


def _reasons(why: Mapping[DatabaseHost, str]) -> str:
    return "; ".join(f"{host}: {reason}" for host, reason in why.items())


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
        """Take a connection from the pool; raise ConnectionError if the server refuses it."""
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
