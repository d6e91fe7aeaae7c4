"""SQL for the backlog: requests taken from the broker that no scheduler has evaluated yet."""

from collections.abc import Collection, Iterable

import msgspec

from bus.errors import NOT_JSON
from bus.messages import BuildRequested
from bus.protocol import Envelope
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from bus.vocabulary import Id

RowId = tuple[Id, int]  # request and attempt


class BacklogRow(msgspec.Struct, frozen=True):
    """A stored request with its message."""

    request: Id
    attempt: int
    project: str
    priority: int
    since: float
    envelope: str
    builds: tuple[Id, ...] = ()  # the builds whose ids differ from the request's

    @property
    def id(self) -> RowId:
        return self.request, self.attempt

    def opened(self) -> Envelope:
        return _envelope(self.envelope)


class FoundBacklog(msgspec.Struct, frozen=True):
    """A request in the backlog, found by its id or a build's."""

    message: BuildRequested
    owner: str
    since: float
    before: int  # requests of its project that its scheduler serves first


_envelope = msgspec.json.Decoder(Envelope).decode
_message = msgspec.json.Decoder(BuildRequested).decode
encode = msgspec.json.Encoder().encode

_STORED = "request, attempt, project, priority, since, envelope"
_INSERT = sql(f"""
    INSERT INTO backlog (owner, {_STORED})
    SELECT :owner, n.request, n.attempt, n.project, n.priority, n.since, n.envelope
    FROM {{n: request str, attempt int, project str, priority int, since float, envelope str}} WHERE true
    ON CONFLICT (request, attempt) DO NOTHING RETURNING request, attempt
""")
_INSERT_BUILDS = sql("""
    INSERT INTO backlog_builds (build, request) SELECT n.build, n.request
    FROM {n: build str, request str} WHERE true ON CONFLICT (build, request) DO NOTHING
""")
_DELETE = sql("""
    DELETE FROM backlog WHERE (request, attempt) IN
    (SELECT n.request, n.attempt FROM {n: request str, attempt int})
""")
_DELETE_BUILDS = sql("""
    DELETE FROM backlog_builds WHERE request IN (SELECT n.request FROM {n: request str})
    AND NOT EXISTS (SELECT 1 FROM backlog WHERE backlog.request = backlog_builds.request)
""")
_NEXT = sql(f"""
    SELECT {_STORED} FROM backlog WHERE owner = :owner AND project = :project
    ORDER BY priority DESC, since, request LIMIT :most
""")
_DEPTHS = sql("SELECT project, count(*) AS depth FROM backlog WHERE owner = :owner GROUP BY project")
_ALL_DEPTHS = sql(
    "SELECT project, count(*) AS depth FROM backlog GROUP BY project ORDER BY depth DESC, project"
)
_OWNERS = sql("""
    SELECT owner FROM (SELECT owner FROM schedulers UNION SELECT '') AS known
    WHERE EXISTS (SELECT 1 FROM backlog WHERE backlog.owner = known.owner)
""")
_ADOPT = sql("""
    UPDATE backlog SET owner = :owner WHERE (request, attempt) IN
    (SELECT request, attempt FROM backlog WHERE owner = :before LIMIT :most) RETURNING request
""")
RELEASE = sql("UPDATE backlog SET owner = '' WHERE owner = :owner")
_FIND = sql("""
    SELECT b.owner, b.since, b.envelope, (SELECT count(*) FROM backlog o WHERE o.owner = b.owner AND
    o.project = b.project AND (o.priority > b.priority OR o.priority = b.priority AND o.since < b.since)
    ) AS before
    FROM backlog b WHERE b.request = CAST(:id AS text)
    OR b.request IN (SELECT request FROM backlog_builds WHERE build = :id)
""")


async def add(tx: Transaction, owner: str, rows: Iterable[BacklogRow]) -> set[RowId]:
    """Store requests for the scheduler `owner`; return those that were not in the backlog before."""
    new = sorted(rows, key=lambda row: row.id)  # two concurrent insertions do not deadlock
    values = [(row.request, row.attempt, row.project, row.priority, row.since, row.envelope) for row in new]
    added = {(request, attempt) for request, attempt in await _INSERT(tx, values, owner=owner)}
    if builds := sorted({(build, row.request) for row in new for build in row.builds}):
        await _INSERT_BUILDS(tx, builds)
    return added


async def drop(tx: Transaction, rows: Collection[RowId]) -> None:
    await _DELETE(tx, sorted(rows))
    await _DELETE_BUILDS(tx, [(request,) for request in sorted({request for request, _ in rows})])


async def following(tx: Transaction, owner: str, project: str, most: int) -> list[BacklogRow]:
    """Return the first requests of a project that a scheduler has to serve."""
    return [BacklogRow(*row) for row in await _NEXT(tx, owner=owner, project=project, most=most)]


async def depths(tx: Transaction, owner: str | None = None) -> dict[str, int]:
    """Return how many requests of each project are in the backlog, of one scheduler or of all."""
    rows = await _ALL_DEPTHS(tx) if owner is None else await _DEPTHS(tx, owner=owner)
    return {project: int(depth) for project, depth in rows}


async def owners(tx: Transaction) -> set[str]:
    return {row["owner"] for row in await _OWNERS(tx)}


async def adopt(tx: Transaction, owner: str, before: str, limit: int) -> int:
    """Take over at most `limit` requests of the scheduler `before`; return how many."""
    return len(await _ADOPT(tx, owner=owner, before=before, most=limit))


async def find(tx: Transaction, id_: Id) -> FoundBacklog | None:
    """Return the request in the backlog with this id, or with a build of this id."""
    for row in await _FIND(tx, id=id_):
        try:
            message = _message(_envelope(row["envelope"]).body)
        except NOT_JSON:  # its scheduler moves the message to the dead letters
            continue
        return FoundBacklog(message, row["owner"], row["since"], int(row["before"]))
    return None
