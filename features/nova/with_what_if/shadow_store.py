"""SQL of shadow mode: requests to Nova's scheduler with berth's decisions, and Nova's results."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from bus import parts
from bus.decisions import Decision
from bus.sql.database import Database
from bus.sql.statement import Statement, Transaction, deletes_oldest, sql
from features.nova.with_what_if.core.fragmentation import FreeMemory
from features.nova.with_what_if.core.shadow_report import DecidedRequest, NovaOutcome
from features.nova.with_what_if.messages import MissingPeriod

PAGE = 5000
LONGEST_TEXT = 4000  # characters

_SQL_TYPES: Mapping[Any, str] = {int: "int", float: "float", bool: "int"}  # else text, or JSON as text


def _columns(record: type) -> dict[str, str]:
    """Return, by column name, the SQL type of the column for each field of a dataclass. The column of a field
    `is_x` is `x`.
    """
    return {
        name.removeprefix("is_"): _SQL_TYPES.get(hint, "str") for name, hint in get_type_hints(record).items()
    }


def _insert(table: str, columns: Mapping[str, str]) -> Statement:
    names = ", ".join(columns)
    values = ", ".join(f"n.{name}" for name in columns)
    typed = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    return sql(f"""
        INSERT INTO {table} ({names}) SELECT {values} FROM {{n: {typed}}} WHERE true
        ON CONFLICT (id) DO NOTHING
    """)


_REQUEST_COLUMNS = _columns(DecidedRequest)
_OUTCOME_COLUMNS = {"id": "str", **_columns(NovaOutcome)}  # id: of the notification
_ADD_REQUESTS = _insert("observed_requests", {**_REQUEST_COLUMNS, "decision": "str"})
_ADD_OUTCOMES = _insert("nova_outcomes", _OUTCOME_COLUMNS)
_KNOWN = sql("SELECT o.id FROM {n: id str} JOIN observed_requests o ON o.id = n.id")
_ASKED = sql("""
    SELECT DISTINCT o.request, o.instance FROM {n: request str, instance str}
    JOIN observed_requests o ON o.request = n.request AND (n.request <> '' OR o.instance = n.instance)
""")
_REQUEST = ", ".join(_REQUEST_COLUMNS)
_OUTCOME = ", ".join(_OUTCOME_COLUMNS)
_PAGED = "(at > :at OR (at = :at AND id > :after)) ORDER BY at, id LIMIT :most"
_REQUESTS = sql(f"SELECT {_REQUEST} FROM observed_requests WHERE {_PAGED}")
_OUTCOMES = sql(f"SELECT {_OUTCOME} FROM nova_outcomes WHERE {_PAGED}")
_OF_INSTANCE = sql(f"""
    SELECT {_REQUEST}, decision FROM observed_requests WHERE instance = :instance
    OR (instances > 1 AND request IN (SELECT o.request FROM nova_outcomes o
    WHERE o.instance = :instance AND o.request <> '')) ORDER BY at DESC LIMIT :most
""")
_OUTCOMES_OF = sql(f"""
    SELECT {", ".join(f"o.{name}" for name in _OUTCOME_COLUMNS)}
    FROM {{n: request str, instance str}} JOIN nova_outcomes o ON o.request = n.request
    AND (n.instance = '' OR o.instance = n.instance) ORDER BY o.at DESC LIMIT :most
""")
_ADD_PERIOD = sql("""
    INSERT INTO missing_periods (since, until) SELECT n.since, n.until FROM {n: since float, until float}
    WHERE true ON CONFLICT (since, until) DO NOTHING
""")
_LATEST = sql("""
    SELECT max(at) AS at FROM (SELECT max(at) AS at FROM observed_requests
    UNION ALL SELECT max(at) AS at FROM nova_outcomes) AS latest
""")
_PERIODS = sql("SELECT since, until FROM missing_periods WHERE until >= :since ORDER BY since")
_PRUNE_PERIODS = sql("DELETE FROM missing_periods WHERE until < :before")
_PRUNE_REQUESTS = deletes_oldest("observed_requests", "id")
_PRUNE_OUTCOMES = deletes_oldest("nova_outcomes", "id")

_encode = parts.stored_encoder().encode
_hosts = msgspec.json.Decoder(tuple[str, ...]).decode
_decision = parts.stored_decoder(Decision).decode
_free = msgspec.json.Decoder(FreeMemory).decode


async def add_requests(tx: Transaction, requests: Iterable[tuple[DecidedRequest, Decision]]) -> None:
    """Store requests to Nova's scheduler with berth's decisions. A request that is stored already keeps its
    first decision.
    """
    rows = {each.id: (*_row(each), _encode(decision).decode()) for each, decision in requests}
    if rows:
        await _ADD_REQUESTS(tx, [rows[id_] for id_ in sorted(rows)])


async def add_outcomes(tx: Transaction, outcomes: Mapping[str, NovaOutcome]) -> None:
    """Store Nova's results for instances; the keys of `outcomes` are ids of notifications. A repeated
    notification does not change its stored result.
    """
    rows = [(id_, *_row(each)) for id_, each in sorted(outcomes.items())]
    if rows:
        await _ADD_OUTCOMES(tx, rows)


def _row(record: DecidedRequest | NovaOutcome) -> tuple[str | int | float, ...]:
    """Return the values of a dataclass as a database row, in the order of `_columns`."""
    return tuple([_storable(getattr(record, field.name)) for field in fields(record)])


def _storable(value: Any) -> str | int | float:
    """Return a value for a column: structures as JSON, booleans as integers, texts shortened and without
    U+0000, which PostgreSQL refuses.
    """
    if isinstance(value, str):
        return value[:LONGEST_TEXT].replace("\0", "")
    if isinstance(value, tuple | FreeMemory):
        return _encode(value).decode()
    return int(value) if isinstance(value, bool) else value


async def known_ids(tx: Transaction, ids: Collection[str]) -> set[str]:
    """Return which of the given requests to Nova's scheduler are stored, by id."""
    return {row["id"] for row in await _KNOWN(tx, [(id_,) for id_ in ids])} if ids else set()


async def observed_keys(tx: Transaction, keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs (API request id, instance) of the stored requests that match one of the given pairs.

    Pairs match if their API request ids are equal; if both ids are empty, if the instances are equal.
    """
    return {(row["request"], row["instance"]) for row in await _ASKED(tx, list(keys))} if keys else set()


async def requests_since(database: Database, since: float) -> AsyncIterator[DecidedRequest]:
    """Yield the requests of Nova that berth observed since this time."""
    async for row in _pages(database, _REQUESTS, since):
        yield _request(row)


async def outcomes_since(database: Database, since: float) -> AsyncIterator[NovaOutcome]:
    """Yield the outcomes that Nova reported for its requests since this time."""
    async for row in _pages(database, _OUTCOMES, since):
        yield _outcome(row)


async def of_instance(
    tx: Transaction, instance: str, most: int
) -> tuple[list[tuple[DecidedRequest, Decision]], list[NovaOutcome]]:
    """Return the newest `most` requests for an instance, each with berth's decision, and all of Nova's
    results that may belong to the returned requests.
    """
    rows = await _OF_INSTANCE(tx, instance=instance, most=most)
    found = [(_request(row), _decision(row["decision"])) for row in rows]
    keys = {(each.request, "" if each.request and each.instances > 1 else each.instance) for each, _ in found}
    outcomes = await _OUTCOMES_OF(tx, sorted(keys), most=PAGE) if keys else ()
    return found, [_outcome(row) for row in outcomes]


async def add_missing(tx: Transaction, until: float) -> MissingPeriod | None:
    """Store the period from the latest stored notification to `until` as a period of missing notifications.
    Return the period, or None if no notification is stored, or the latest is not before `until`.
    """
    [latest] = await _LATEST(tx)
    if latest["at"] is None or latest["at"] >= until:
        return None
    await _ADD_PERIOD(tx, [(latest["at"], until)])
    return MissingPeriod(since=latest["at"], until=until)


async def missing_since(tx: Transaction, since: float) -> list[MissingPeriod]:
    """Return the periods since this time for which no decisions were received."""
    return [MissingPeriod(since=row["since"], until=row["until"]) for row in await _PERIODS(tx, since=since)]


async def prune(tx: Transaction, before: float, limit: int) -> int:
    """Delete requests and results of Nova older than `before`, at most `limit` of each, and older periods of
    missing notifications. Return the larger of the numbers of deleted requests and deleted results.
    """
    await _PRUNE_PERIODS(tx, before=before)
    requests = await _PRUNE_REQUESTS(tx, before=before, most=limit)
    return max(len(requests), len(await _PRUNE_OUTCOMES(tx, before=before, most=limit)))


async def _pages(database: Database, statement: Statement, since: float) -> AsyncIterator[Any]:
    at, after = since, ""
    while True:
        async with database.read() as tx:
            rows = await statement(tx, at=at, after=after, most=PAGE)
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        at, after = rows[-1]["at"], rows[-1]["id"]


def _request(row: Any) -> DecidedRequest:
    stored: dict[str, Any] = {name: row[name] for name in _REQUEST_COLUMNS}
    stored |= {"hosts": _hosts(row["hosts"]), "free": _free(row["free"])}
    stored["is_searched"] = bool(stored.pop("searched"))
    return DecidedRequest(**stored)


def _outcome(row: Any) -> NovaOutcome:
    return NovaOutcome(**{name: row[name] for name in _OUTCOME_COLUMNS if name != "id"})
