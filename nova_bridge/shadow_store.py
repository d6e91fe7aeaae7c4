"""SQL of shadow mode: requests to Nova's scheduler with berth's decisions, and Nova's results."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any

import msgspec

from bus.decisions import Decision
from bus.sql.database import Database
from bus.sql.statement import Statement, sql
from bus.sql.transaction import Transaction
from nova_bridge.core.shadow_report import DecidedRequest, NovaOutcome

PAGE = 5000
LONGEST_REASON = 4000  # characters

_ADD_REQUESTS = sql("""
    INSERT INTO observed_requests (id, request, instance, at, operation, project, flavor, instances, hosts,
    reason, code, undecided, decision, seconds, lag, searched)
    SELECT n.id, n.request, n.instance, n.at, n.operation, n.project, n.flavor, n.instances, n.hosts,
    n.reason, n.code, n.undecided, n.decision, n.seconds, n.lag, n.searched
    FROM {n: id str, request str, instance str, at float, operation str, project str, flavor str,
    instances int, hosts str, reason str, code str, undecided str, decision str, seconds float, lag float,
    searched int} WHERE true ON CONFLICT (id) DO NOTHING
""")
_ADD_OUTCOMES = sql("""
    INSERT INTO nova_outcomes (id, request, instance, at, event, operation, host, cause, reason)
    SELECT n.id, n.request, n.instance, n.at, n.event, n.operation, n.host, n.cause, n.reason
    FROM {n: id str, request str, instance str, at float, event str, operation str, host str, cause str,
    reason str} WHERE true ON CONFLICT (id) DO NOTHING
""")
_KNOWN = sql("SELECT o.id FROM {n: id str} JOIN observed_requests o ON o.id = n.id")
_ASKED = sql("""
    SELECT DISTINCT o.request, o.instance FROM {n: request str, instance str}
    JOIN observed_requests o ON o.request = n.request AND (n.request <> '' OR o.instance = n.instance)
""")
_REQUEST = """id, request, instance, at, operation, project, flavor, instances, hosts, reason, code,
    undecided, seconds, lag, searched"""
_OUTCOME = "id, request, instance, at, event, operation, host, cause, reason"
_PAGED = "(at > :at OR (at = :at AND id > :after)) ORDER BY at, id LIMIT :most"
_REQUESTS = sql(f"SELECT {_REQUEST} FROM observed_requests WHERE {_PAGED}")
_OUTCOMES = sql(f"SELECT {_OUTCOME} FROM nova_outcomes WHERE {_PAGED}")
_OF_INSTANCE = sql(f"""
    SELECT {_REQUEST}, decision FROM observed_requests WHERE instance = :instance
    OR (instances > 1 AND request IN (SELECT o.request FROM nova_outcomes o
    WHERE o.instance = :instance AND o.request <> '')) ORDER BY at DESC LIMIT :most
""")
_OUTCOMES_OF = sql(f"""
    SELECT {", ".join(f"o.{name}" for name in _OUTCOME.split(", "))}
    FROM {{n: request str, instance str}} JOIN nova_outcomes o ON o.request = n.request
    AND (n.instance = '' OR o.instance = n.instance) ORDER BY o.at DESC LIMIT :most
""")
_PRUNE_REQUESTS = sql("""
    DELETE FROM observed_requests WHERE id IN
    (SELECT id FROM observed_requests WHERE at < :before ORDER BY at LIMIT :most) RETURNING id
""")
_PRUNE_OUTCOMES = sql("""
    DELETE FROM nova_outcomes WHERE id IN
    (SELECT id FROM nova_outcomes WHERE at < :before ORDER BY at LIMIT :most) RETURNING id
""")

_encode = msgspec.json.Encoder().encode
_hosts = msgspec.json.Decoder(tuple[str, ...]).decode
_decision = msgspec.json.Decoder(Decision).decode


async def add_requests(tx: Transaction, requests: Iterable[tuple[DecidedRequest, Decision]]) -> None:
    """Store decided requests; a request that is stored already keeps its first decision."""
    rows = {
        each.id: (
            each.id, each.request, each.instance, each.at, each.operation, each.project, each.flavor,
            each.instances, _encode(each.hosts).decode(), each.reason[:LONGEST_REASON], each.code,
            each.undecided[:LONGEST_REASON], _encode(decision).decode(), each.seconds, each.lag,
            int(each.is_searched),
        )
        for each, decision in requests
    }  # fmt: skip
    if rows:
        await _ADD_REQUESTS(tx, [_storable(rows[id_]) for id_ in sorted(rows)])


async def add_outcomes(tx: Transaction, outcomes: Mapping[str, NovaOutcome]) -> None:
    """Store Nova's actions for instances by their notifications' ids; stored actions are not changed."""
    rows = [
        (id_, each.request, each.instance, each.at, each.event, each.operation, each.host, each.cause,
         each.reason[:LONGEST_REASON])
        for id_, each in sorted(outcomes.items())
    ]  # fmt: skip
    if rows:
        await _ADD_OUTCOMES(tx, [_storable(row) for row in rows])


def _storable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row's values without the character U+0000 in texts, which PostgreSQL cannot store."""
    return tuple([value.replace("\0", "") if isinstance(value, str) else value for value in row])


async def known_ids(tx: Transaction, ids: Collection[str]) -> set[str]:
    """Return which of the given requests to Nova's scheduler are stored, by their ids."""
    return {row["id"] for row in await _KNOWN(tx, [(id_,) for id_ in ids])} if ids else set()


async def observed_keys(tx: Transaction, keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs (API request id, instance) of the stored requests that match one of the given pairs.

    Pairs match if their API request ids are equal; if these are empty, the instances must be equal.
    """
    return {(row["request"], row["instance"]) for row in await _ASKED(tx, list(keys))} if keys else set()


async def requests_since(database: Database, since: float) -> AsyncIterator[DecidedRequest]:
    async for row in _pages(database, _REQUESTS, since):
        yield _request(row)


async def outcomes_since(database: Database, since: float) -> AsyncIterator[NovaOutcome]:
    async for row in _pages(database, _OUTCOMES, since):
        yield _outcome(row)


async def of_instance(
    tx: Transaction, instance: str, most: int
) -> tuple[list[tuple[DecidedRequest, Decision]], list[NovaOutcome]]:
    """Return the requests for an instance, with berth's decisions, and Nova's results for these requests."""
    rows = await _OF_INSTANCE(tx, instance=instance, most=most)
    found = [(_request(row), _decision(row["decision"])) for row in rows]
    keys = {(each.request, "" if each.request and each.instances > 1 else each.instance) for each, _ in found}
    outcomes = await _OUTCOMES_OF(tx, sorted(keys), most=PAGE) if keys else ()
    return found, [_outcome(row) for row in outcomes]


async def prune(tx: Transaction, before: float, limit: int) -> int:
    """Delete requests and results before a time, at most `limit` of each; return the larger number."""
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
    return DecidedRequest(
        id=row["id"],
        request=row["request"],
        instance=row["instance"],
        at=row["at"],
        operation=row["operation"],
        project=row["project"],
        flavor=row["flavor"],
        instances=row["instances"],
        hosts=_hosts(row["hosts"]),
        reason=row["reason"],
        code=row["code"],
        undecided=row["undecided"],
        seconds=row["seconds"],
        lag=row["lag"],
        is_searched=bool(row["searched"]),
    )


def _outcome(row: Any) -> NovaOutcome:
    return NovaOutcome(
        request=row["request"],
        instance=row["instance"],
        at=row["at"],
        event=row["event"],
        operation=row["operation"],
        host=row["host"],
        cause=row["cause"],
        reason=row["reason"],
    )
