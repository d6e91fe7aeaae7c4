"""SQL of the REST API: accepted requests with their builds, and the numbered log of ends."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bus.sql.statement import Transaction, deletes_oldest, sql


@dataclass(frozen=True, kw_only=True)
class StoredRequest:
    """An accepted build request or move. A repeated request has the same digest."""

    id: str
    project: str
    digest: str
    builds: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StoredEnd:
    """A message with the result of a request, as the table `rest_ends` stores it; `body` is JSON."""

    number: int = 0
    event: str
    subject: str
    project: str = ""
    request: str = ""
    body: str


class IdTaken(Exception):
    """Error: an id is in use by a request with another body, or by another project."""


def check_free(requests: Sequence[StoredRequest], projects: Mapping[str, str]) -> None:
    """Raise IdTaken if a request has an id of another project; `projects` are those of ids in use."""
    for each in requests:
        if projects.get(each.id, each.project) != each.project:
            raise IdTaken(_TAKEN.format(each.id))


_TAKEN = "{} is the id of another request"
_ADD_REQUESTS = sql("""
    INSERT INTO rest_requests (id, project, digest, at) SELECT n.id, n.project, n.digest, :NOW
    FROM {n: id str, project str, digest str} WHERE true ON CONFLICT (id) DO NOTHING RETURNING id
""")
_REQUESTS = sql("""
    SELECT r.id, r.project, r.digest FROM {n: id str} JOIN rest_requests r ON r.id = n.id
""")
_ADD_BUILDS = sql("""
    INSERT INTO rest_builds (build, request, project, at) SELECT n.build, n.request, n.project, :NOW
    FROM {n: build str, request str, project str} WHERE true ON CONFLICT (build) DO NOTHING RETURNING build
""")
_BUILDS = sql("""
    SELECT b.build, b.request FROM {n: build str} JOIN rest_builds b ON b.build = n.build
""")
_PROJECTS = sql("""
    SELECT n.id, COALESCE(b.project, r.project) AS project FROM {n: id str}
    LEFT JOIN rest_builds b ON b.build = n.id LEFT JOIN rest_requests r ON r.id = n.id
    WHERE COALESCE(b.project, r.project) IS NOT NULL
""")
_BUILDS_OF = sql("SELECT build FROM rest_builds WHERE request = :request ORDER BY build")
_ENDS_OF = sql("SELECT event, body FROM rest_ends WHERE request = :request ORDER BY number")
_NUMBERS = sql("UPDATE rest_counter SET last = last + :many RETURNING last")
_ADD_ENDS = sql("""
    INSERT INTO rest_ends (number, event, subject, project, request, body, at)
    SELECT n.number, n.event, n.subject, n.project, n.request, n.body, :NOW
    FROM {n: number int, event str, subject str, project str, request str, body str} WHERE true
    ON CONFLICT (event, subject) DO NOTHING
""")
_COUNTER = sql("SELECT last, pruned FROM rest_counter")
_END = "number, event, subject, project, request, body"
_AFTER = sql(f"SELECT {_END} FROM rest_ends WHERE number > :after ORDER BY number LIMIT :most")
_AFTER_OF_PROJECT = sql(f"""
    SELECT {_END} FROM rest_ends WHERE project = :project AND number > :after ORDER BY number LIMIT :most
""")
_PRUNE_ENDS = deletes_oldest("rest_ends", "number")
_PRUNED = sql("UPDATE rest_counter SET pruned = :number WHERE pruned < :number")
_PRUNE_BUILDS = deletes_oldest("rest_builds", "build")
_PRUNE_REQUESTS = deletes_oldest("rest_requests", "id")


async def accept(tx: Transaction, requests: Sequence[StoredRequest], now: float) -> None:
    """Store requests and their builds. Equal requests that are stored already change nothing; raise
    IdTaken if another request has one of the ids.
    """
    listed = sorted(requests, key=lambda request: request.id)  # concurrent transactions lock in one order
    added = await _ADD_REQUESTS(tx, [(each.id, each.project, each.digest) for each in listed], now=now)
    if len(added) < len(listed):
        stored = {row["id"]: row for row in await _REQUESTS(tx, [(each.id,) for each in listed])}
        for each in listed:
            if stored[each.id]["project"] != each.project or stored[each.id]["digest"] != each.digest:
                raise IdTaken(_TAKEN.format(each.id))
    rows = sorted((build, each.id, each.project) for each in listed for build in each.builds)
    if rows and len(await _ADD_BUILDS(tx, rows, now=now)) < len(rows):
        owners = {row["build"]: row["request"] for row in await _BUILDS(tx, [row[:1] for row in rows])}
        for build, request, _ in rows:
            if owners[build] != request:
                raise IdTaken(f"{build} is the id of an instance of another request")


async def add_build(tx: Transaction, build: str, project: str, now: float) -> None:
    """Record the project of a build that was requested without the REST API."""
    await _ADD_BUILDS(tx, [(build, "", project)], now=now)


async def projects_of(tx: Transaction, ids: Collection[str]) -> dict[str, str]:
    """Return the projects of requests, moves and builds by id; unknown ids are missing."""
    rows = [(id_,) for id_ in sorted(set(ids))]
    return {row["id"]: row["project"] for row in await _PROJECTS(tx, rows)} if rows else {}


async def builds_of(tx: Transaction, request: str) -> list[str]:
    return [row["build"] for row in await _BUILDS_OF(tx, request=request)]


async def ends_of(tx: Transaction, request: str) -> list[tuple[str, str]]:
    """Return the stored ends of a request as pairs of event and body."""
    return [(row["event"], row["body"]) for row in await _ENDS_OF(tx, request=request)]


async def add_ends(tx: Transaction, ends: Sequence[StoredEnd], now: float) -> None:
    """Store ends with the next numbers. An end that is stored already keeps its number.

    The row of the counter is locked until the commit, so a reader that sees a number has seen all lower
    numbers.
    """
    first = (await _NUMBERS(tx, many=len(ends)))[0]["last"] - len(ends) + 1
    rows = [
        (first + index, end.event, end.subject, end.project, end.request, end.body)
        for index, end in enumerate(ends)
    ]
    await _ADD_ENDS(tx, rows, now=now)


async def counter(tx: Transaction) -> tuple[int, int]:
    """Return the highest number of an end, and the highest number of a deleted end."""
    row = (await _COUNTER(tx))[0]
    return row["last"], row["pruned"]


async def ends_after(tx: Transaction, after: int, most: int, project: str | None = None) -> list[StoredEnd]:
    """Return at most `most` ends with numbers above `after`, of one project or of all projects."""
    if project is None:
        return _ends(await _AFTER(tx, after=after, most=most))
    return _ends(await _AFTER_OF_PROJECT(tx, after=after, most=most, project=project))


def _ends(rows: Iterable[dict[str, object]]) -> list[StoredEnd]:
    return [StoredEnd(**{name: row[name] for name in _END.split(", ")}) for row in rows]  # type: ignore[arg-type]


async def prune_ends(tx: Transaction, before: float, most: int) -> int:
    """Delete at most `most` ends older than `before`; return how many."""
    ends = await _PRUNE_ENDS(tx, before=before, most=most)
    if ends:
        await _PRUNED(tx, number=max(row["number"] for row in ends))
    return len(ends)


async def prune_requests(tx: Transaction, before: float, most: int) -> int:
    """Delete requests and builds older than `before`, at most `most` of each; return the larger number."""
    builds = await _PRUNE_BUILDS(tx, before=before, most=most)
    return max(len(builds), len(await _PRUNE_REQUESTS(tx, before=before, most=most)))
