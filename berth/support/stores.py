"""Reads sizes, transactions and slow statements of berth's databases for a support bundle."""

import re
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from bus.sql.database import Database
from bus.sql.statement import Transaction

_TABLES = text(
    """
    SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, c.reltuples::bigint AS rows,
        s.n_dead_tup AS dead_rows, s.last_autovacuum::text AS vacuumed
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE n.nspname = current_schema() AND c.relkind = 'r' ORDER BY bytes DESC
    """
)
_ACTIVITY = text(
    """
    SELECT pid, usename AS "user", application_name AS application, state,
        concat_ws(' ', wait_event_type, wait_event) AS waits_for, pg_blocking_pids(pid) AS blocked_by,
        extract(epoch FROM clock_timestamp() - xact_start)::float AS transaction_seconds,
        extract(epoch FROM clock_timestamp() - query_start)::float AS statement_seconds,
        query AS statement
    FROM pg_stat_activity
    WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()
    ORDER BY xact_start LIMIT 50
    """
)
_EXTENSION = text(
    "SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " WHERE extname = 'pg_stat_statements'"
)
_STATEMENTS = """
    SELECT calls, total_exec_time / 1000 AS seconds, mean_exec_time / 1000 AS mean_seconds, rows,
        query AS statement
    FROM {schema}.pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY total_exec_time DESC LIMIT 20
"""
_SQLITE_TABLES = text("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
_SQLITE_BYTES = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
_READABLE = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "LOCK", "BEGIN", "COMMIT", "VACUUM"})
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_LONGEST = 4000  # characters of a statement


async def report(database: Database) -> dict[str, Any]:
    """Return the tables of a database with their sizes; of PostgreSQL also the open transactions, the oldest
    first, and the statements that took most time, if the extension pg_stat_statements counts them.
    """
    async with database.read() as tx:
        if database.dialect == "sqlite":
            return {"place": database.name, **await _sqlite(tx)}
        tables, active = await _rows(tx, _TABLES), await _rows(tx, _ACTIVITY)
        schema = (await tx.execute(_EXTENSION)).scalar_one_or_none()
    slow: object = "the extension pg_stat_statements is not installed"
    if schema is not None:
        try:
            async with database.read() as tx:
                slow = await _rows(tx, text(_STATEMENTS.format(schema=schema)))
        except SQLAlchemyError as problem:  # the extension is installed, but the server has not loaded it
            slow = str(problem)
    return {"place": database.name, "tables": tables, "active": active, "slow_statements": slow}


async def _sqlite(tx: Transaction) -> dict[str, Any]:
    counts = {
        str(name): (await tx.execute(text(f'SELECT count(*) FROM "{name}"'))).scalar_one()
        for (name,) in await tx.execute(_SQLITE_TABLES)
    }
    used = (await tx.execute(_SQLITE_BYTES)).scalar_one()
    return {"bytes": used, "tables": [{"name": name, "rows": rows} for name, rows in counts.items()]}


async def _rows(tx: Transaction, statement: Any) -> list[dict[str, Any]]:
    found = [dict(row) for row in (await tx.execute(statement)).mappings()]
    return [row | {"statement": shown(row["statement"])} if "statement" in row else row for row in found]


def shown(statement: str | None) -> str:
    """Return an SQL statement without literals. Statements of other types than in _READABLE may contain
    passwords: only their first two words are returned.
    """
    words = (statement or "").split()
    if not words or words[0].upper() not in _READABLE:
        return " ".join(words[:2]) + (" ..." if len(words) > 2 else "")
    return _LITERAL.sub("'?'", " ".join(words))[:_LONGEST]
