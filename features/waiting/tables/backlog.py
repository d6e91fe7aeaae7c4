"""SQL for the backlog: requests taken from the broker that no scheduler has evaluated yet.

The requests of one project and priority that arrived together are one row, a bundle: a flood of requests must
be stored as fast as the broker delivers it. A bundle is deleted after all of its requests were handled.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from bus.errors import Undecodable
from bus.invalid_requests import read
from bus.messages import BuildRequested
from bus.protocol import Envelope
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Id


class Bundle(msgspec.Struct, frozen=True):
    """A stored bundle of requests of one project and priority."""

    id: Id
    project: str
    priority: int
    since: float
    requests: int  # number of requests
    envelopes: str
    strikes: int = 0  # schedulers that ended in succession: owning the bundle, then with it in memory

    @property
    def key(self) -> tuple[int, float, str]:
        return -self.priority, self.since, self.id

    def opened(self) -> list[Envelope]:
        return _opened(self.envelopes)


class Depth(NamedTuple):
    """The numbers of bundles and requests of one project and priority that a scheduler has to serve."""

    project: str
    priority: int
    bundles: int
    requests: int


class FoundBacklog(msgspec.Struct, frozen=True):
    """A request in the backlog, found by its id or a build's."""

    message: BuildRequested
    since: float
    owner: str  # its scheduler
    before: int  # most stored requests of the project that precede it at its scheduler


_opened = msgspec.json.Decoder(list[Envelope]).decode
_encode = msgspec.json.Encoder().encode

_STORED = "id, project, priority, since, requests, envelopes, strikes"
_INSERT = sql(f"""
    INSERT INTO backlog (owner, {_STORED})
    SELECT :owner, n.id, n.project, n.priority, n.since, n.requests, n.envelopes, n.strikes FROM
    {{n: id str, project str, priority int, since float, requests int, envelopes str, strikes int}} WHERE true
""")
_DELETE = sql("DELETE FROM backlog WHERE id IN (SELECT n.id FROM {n: id str})")
_NEXT = sql(f"""
    SELECT {_STORED} FROM backlog WHERE owner = :owner AND project = :project
    ORDER BY priority DESC, since, id LIMIT :most
""")
_DEPTHS = sql("""
    SELECT project, priority, count(*) AS bundles, sum(requests) AS requests FROM backlog
    WHERE owner = :owner GROUP BY project, priority
""")
_ALL_DEPTHS = sql("SELECT project, sum(requests) AS requests FROM backlog GROUP BY project")
_BEFORE = sql("""
    SELECT owner, sum(requests) AS requests FROM backlog
    WHERE project = :project AND priority >= :priority GROUP BY owner
""")
_OWNERS = sql("""
    SELECT owner FROM (SELECT owner FROM schedulers UNION SELECT '') AS known
    WHERE EXISTS (SELECT 1 FROM backlog WHERE backlog.owner = known.owner)
""")
_ADOPT = sql("""
    UPDATE backlog SET owner = :owner,
    strikes = CASE WHEN owner = '' OR strikes > 0 THEN strikes ELSE 1 END
    WHERE owner = :before RETURNING requests
""")
_STRIKE = sql("UPDATE backlog SET strikes = strikes + 1 WHERE id IN (SELECT n.id FROM {n: id str})")
RELEASE = sql("UPDATE backlog SET owner = '', strikes = 0 WHERE owner = :owner")
_FIND = sql("""
    SELECT b.envelopes, b.owner, (SELECT sum(o.requests) FROM backlog o WHERE o.owner = b.owner AND
    o.project = b.project AND (o.priority > b.priority OR o.priority = b.priority AND o.since < b.since)
    ) AS before FROM backlog b WHERE b.envelopes LIKE CAST(:pattern AS text)
""")


def bundle(id_: Id, project: str, priority: int, envelopes: Sequence[Envelope]) -> Bundle:
    """Return a bundle of the given messages. Raise UnicodeDecodeError if a message is not UTF-8."""
    since = min(envelope.sent_at for envelope in envelopes)
    return Bundle(id_, project, priority, since, len(envelopes), _encode(envelopes).decode())


async def add(tx: Transaction, owner: str, bundles: Iterable[Bundle]) -> None:
    await _INSERT(tx, [msgspec.structs.astuple(each) for each in bundles], owner=owner)


async def drop(tx: Transaction, bundles: Collection[Id]) -> None:
    await _DELETE(tx, [(id_,) for id_ in sorted(bundles)])


async def following(tx: Transaction, owner: str, project: str, most: int) -> list[Bundle]:
    """Return the first `most` bundles of a project that the scheduler `owner` has to serve."""
    return [Bundle(*row) for row in await _NEXT(tx, owner=owner, project=project, most=most)]


async def strike(tx: Transaction, bundles: Iterable[Id]) -> None:
    """Add a strike to each bundle before it is read into memory. Strikes count the schedulers that ended
    while they had the bundle in memory.
    """
    await _STRIKE(tx, [(id_,) for id_ in sorted(bundles)])


async def depths(tx: Transaction, owner: str) -> list[Depth]:
    """Return how many bundles and how many requests a scheduler has to serve, by project and priority."""
    return [
        Depth(project, priority, int(bundles), int(requests))
        for project, priority, bundles, requests in await _DEPTHS(tx, owner=owner)
    ]


async def counts(tx: Transaction) -> dict[str, int]:
    """Return how many requests of each project are in the backlog of any scheduler."""
    return {project: int(requests) for project, requests in await _ALL_DEPTHS(tx)}


async def before(tx: Transaction, project: str, priority: int) -> dict[str, int]:
    """Return how many requests of a project precede a new request of this priority, by scheduler."""
    rows = await _BEFORE(tx, project=project, priority=priority)
    return {owner: int(requests) for owner, requests in rows}


async def owners(tx: Transaction) -> set[str]:
    return {row["owner"] for row in await _OWNERS(tx)}


async def adopt(tx: Transaction, owner: str, before: str) -> int:
    """Take over the bundles of the scheduler `before`; return the number of their requests."""
    return sum(requests for (requests,) in await _ADOPT(tx, owner=owner, before=before))


async def find(tx: Transaction, id_: Id) -> FoundBacklog | None:
    """Search all messages for the request with this id, or with a build of this id; None if not found."""
    for envelopes, owner, before in await _FIND(tx, pattern=f"%{id_}%"):
        bundled = _opened(envelopes)
        for envelope in bundled:
            try:
                message = read(BuildRequested, envelope.body)
            except Undecodable:  # the scheduler that serves the message dead-letters it
                continue
            if id_ == message.request or id_ in message.instances:
                since = envelope.sent_at
                earlier = sum((each.sent_at, each.id) < (since, envelope.id) for each in bundled)
                return FoundBacklog(message, since, owner, int(before or 0) + earlier)
    return None
