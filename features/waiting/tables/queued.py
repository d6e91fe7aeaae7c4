"""SQL for the queue of requests. Functions take and return values, not rows; each batch is one statement.

A row is a request that was not evaluated yet (a new one), or one that was, with what it lacks. A new request
has an empty `kind`, and its message in its envelope with the digest of both; so a retry, or another message
with the id of a stored request, has its own row until it is handled. An evaluated request has the digest 0.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from bus import parts
from bus.context import NO_CONTEXT, StoredContext
from bus.decisions import BACKLOG, Decision
from bus.errors import NOT_JSON, Undecodable
from bus.messages import BuildRequested
from bus.protocol import Envelope
from bus.reading import read
from bus.sql.statement import Transaction, sql
from bus.vocabulary import MAX_INT, Id
from features.waiting.core.reserved_hosts import StoredHold
from features.waiting.core.shares import Contender, QueueKey
from features.waiting.core.waiting_request import Subject, with_instances
from features.waiting.messages import priority_of

log = logging.getLogger(__name__)


NewId = tuple[Id, int]  # of a new request: the request's id, and the digest of its message
NO_DIGEST = 0  # of evaluated requests
NewKey = tuple[int, float, Id, int]  # negative priority, time of the message, and NewId
FIRST: NewKey = (-MAX_INT, 0.0, "", 0)  # key before those of all requests
LAST: NewKey = (MAX_INT, float("inf"), "", 0)  # key after those of all requests


class NewRequest(msgspec.Struct, frozen=True):
    """A stored request that was not evaluated yet."""

    request: Id
    digest: int  # of its message
    project: str
    priority: int
    since: float  # when its message was sent
    message: str  # with its envelope
    strikes: int = 0  # schedulers that ended in succession: owning the request, then with it in memory

    @property
    def id(self) -> NewId:
        return self.request, self.digest

    @property
    def key(self) -> NewKey:
        return -self.priority, self.since, self.request, self.digest

    @property
    def envelope(self) -> Envelope:
        return _envelope(self.message)


class Depth(NamedTuple):
    """The number of requests of one project and priority that a scheduler has to evaluate."""

    project: str
    priority: int
    requests: int


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A stored request that waits: for hosts of new instances or, with a `subject`, for a new host of an
    existing instance.
    """

    message: BuildRequested
    kind: str
    since: float
    until: float
    seen: int  # placement's last change number at the last evaluation
    lacks: str  # why the request has no host yet, as a sentence
    wakes: str = ""  # which change would wake the request, as a sentence
    decision: Decision = field(default_factory=Decision)
    story: StoredContext = NO_CONTEXT  # tracing context of the request's message
    subject: Subject | None = None  # of a request that boots no instance
    strikes: int = 0  # schedulers that ended in succession: owning the request, then evaluating it
    wakes_on: str = ""  # key of the commits that may help, if a rule refused the claim

    @property
    def request(self) -> Id:
        return self.message.request

    @property
    def key(self) -> QueueKey:
        return -priority_of(self.message.parts), self.since, self.request

    @property
    def contender(self) -> Contender:
        project = self.message.project if self.subject is None else ""
        return Contender(project, priority_of(self.message.parts), self.since)


RELEASED, ENDED = -1, -2  # the `beat` of a scheduler that stopped in order, and of one that did not
CANCELLED = "cancelled <> ''"  # an index has this condition, and is used only if a query repeats it literally
WAITS = f"kind <> '' AND NOT ({CANCELLED})"
_TEXTS = "request kind project flavor message lacks wakes wakes_on decision story move subject"
_STORED = dict.fromkeys(_TEXTS.split(), "str")
_STORED |= {"priority": "int", "since": "float", "until": "float", "instances": "int", "seen": "int"}
_CHANGING = "request kind seen lacks wakes wakes_on decision flavor message subject"
_JUDGED = {name: _STORED[name] for name in _CHANGING.split()}


def _columns(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())


# Indexes have these conditions. Statements that find rows by id use the primary key instead.
NEW, EVALUATED = "kind = ''", "kind <> ''"
_IN_ORDER = "ORDER BY priority DESC, since, request, digest"
_NEW = "request, digest, project, priority, since, message, strikes"
_INSERT_NEW = sql("""
    INSERT INTO queued (owner, request, digest, project, priority, since, message)
    SELECT :owner, n.request, n.digest, n.project, n.priority, n.since, n.message FROM
    {n: request str, digest int, project str, priority int, since float, message str} WHERE true
    ON CONFLICT (request, digest) DO UPDATE SET owner = queued.owner RETURNING request, digest, owner
""")
_FOLLOWING = sql(f"""
    SELECT {_NEW} FROM queued WHERE owner = :owner AND {NEW} AND project = :project AND
    (priority < :priority OR priority = :priority AND (since > :since OR since = :since AND
    (request > :request OR request = :request AND digest >= :digest))) {_IN_ORDER} LIMIT :most
""")
# `owner || ''` matches no index: PostgreSQL expects few rows of an owner of which it has no statistics, and
# would read all of them for each id.
_DELETE_NEW = sql("""
    DELETE FROM queued WHERE (request, digest) IN (SELECT n.id, n.digest FROM {n: id str, digest int})
    AND owner || '' = :owner
""")
_STRIKE = sql("""
    UPDATE queued SET strikes = n.strikes FROM {n: request str, digest int, strikes int}
    WHERE queued.request = n.request AND queued.digest = n.digest AND queued.owner || '' = :owner
""")
_DEPTHS = sql(f"""
    SELECT project, priority, count(*) AS requests FROM queued
    WHERE owner = :owner AND {NEW} GROUP BY project, priority
""")
_COUNT_NEW = sql(f"SELECT project, count(*) AS requests FROM queued WHERE {NEW} GROUP BY project")
_BEFORE = sql(f"""
    SELECT queued.owner, count(*) AS requests FROM schedulers JOIN queued ON queued.owner = schedulers.owner
    WHERE project = :project AND priority >= :priority AND {NEW} GROUP BY queued.owner
""")
_FIND_NEW = sql(f"""
    SELECT {_NEW}, owner, (SELECT count(*) FROM queued o WHERE o.owner = q.owner AND o.{NEW} AND
    o.project = q.project AND (o.priority > q.priority OR o.priority = q.priority AND
    (o.since < q.since OR o.since = q.since AND o.request < q.request))) AS before
    FROM queued q WHERE {NEW} AND message LIKE CAST(:pattern AS text)
""")
_INSERT = sql(f"""
    INSERT INTO queued (owner, digest, {", ".join(_STORED)})
    SELECT :owner, 0, {", ".join(f"n.{name}" for name in _STORED)} FROM {{n: {_columns(_STORED)}}} WHERE true
    ON CONFLICT (request, digest) DO UPDATE SET owner = queued.owner WHERE queued.owner = excluded.owner
    RETURNING request
""")
_INSERT_BUILDS = sql("""
    INSERT INTO queued_builds (build, request) SELECT n.build, n.request
    FROM {n: build str, request str} WHERE true
    ON CONFLICT (build) DO UPDATE SET request = excluded.request RETURNING build
""")
_LOOKED_AT = sql(f"""
    UPDATE queued SET kind = n.kind, seen = n.seen, lacks = n.lacks, wakes = n.wakes,
    wakes_on = n.wakes_on, decision = n.decision, flavor = n.flavor,
    message = CASE WHEN n.message = '' THEN queued.message ELSE n.message END, subject = n.subject
    FROM {{n: {_columns(_JUDGED)}}}
    WHERE queued.request = n.request AND queued.digest = 0 RETURNING queued.request
""")
_REWRITE = sql("""
    UPDATE queued SET message = n.message, instances = n.instances
    FROM {n: request str, message str, instances int}
    WHERE queued.request = n.request AND queued.digest = 0 RETURNING queued.request
""")
_DELETE = [
    sql(f"DELETE FROM {table} WHERE {id_} IN (SELECT n.id FROM {{n: id str}}) {which} RETURNING {id_}")
    for table, id_, which in (
        ("subjects", "request", ""),
        ("queued_builds", "request", ""),
        ("queued", "request", "AND digest = 0"),
    )
]
_ONE_OF_EACH = sql("""
    INSERT INTO subjects (instance, request) SELECT n.instance, n.request
    FROM {n: instance str, request str} WHERE true
    ON CONFLICT (instance) DO UPDATE SET request = subjects.request RETURNING instance, request
""")
_DELETE_BUILD = sql("DELETE FROM queued_builds WHERE build IN (SELECT n.id FROM {n: id str}) RETURNING build")
_KEPT = (
    "request, kind, since, until, seen, message, lacks, wakes, wakes_on, decision, story, subject, strikes"
)
_OF_OWNER = sql(f"SELECT request FROM queued WHERE owner = :owner AND {EVALUATED}")
# Rows of an owner that sent a further heartbeat remain with it, and so do rows that another transaction has
# locked: two schedulers that adopt do not wait for each other.
_ADOPTED = """
    UPDATE queued SET owner = :owner, strikes = CASE WHEN CAST(:beat AS bigint) = {RELEASED} THEN 0
    WHEN strikes > 0 THEN strikes ELSE 1 END WHERE owner || '' = :before AND (request, digest) IN
    (SELECT request, digest FROM {rows} WHERE owner = :before AND {state} AND NOT EXISTS (SELECT 1 FROM
    schedulers s WHERE s.owner = :before AND s.beat <> :beat) {order} LIMIT :most
    FOR UPDATE OF queued SKIP LOCKED) RETURNING {returned}
"""
_ADOPT = sql(_ADOPTED.format(RELEASED=RELEASED, rows="queued", state=EVALUATED, order="", returned=_KEPT))
_ADOPT_NEW = sql(
    _ADOPTED.format(
        RELEASED=RELEASED,
        rows="{n: project str} JOIN queued ON queued.project = n.project",
        state=NEW,
        order=_IN_ORDER,
        returned=_NEW.replace("message", "'' AS message"),
    )
)
_OF_ANY_OWNER = f"SELECT {_KEPT} FROM queued JOIN {{n: id str}} ON n.id = queued.request WHERE digest = 0"
_OWNED_OF = sql(f"{_OF_ANY_OWNER} AND owner || '' = :owner")
_OF_ANY = sql(_OF_ANY_OWNER)
_FIND = sql("""
    SELECT DISTINCT queued.* FROM {n: id str}
    JOIN queued_builds ON queued_builds.build = n.id OR queued_builds.request = n.id
    JOIN queued ON queued.request = queued_builds.request AND queued.digest = 0
""")
_CANCEL = sql("""
    UPDATE queued SET cancelled = n.why FROM {n: request str, why str}
    WHERE queued.request = n.request AND queued.digest = 0 RETURNING queued.request
""")
_CANCELLED = sql(f"SELECT request FROM queued WHERE owner = :owner AND {CANCELLED}")

_BEAT = sql("""
    INSERT INTO schedulers (owner, beat, rescued, starts, holds)
    VALUES (:owner, 0, :rescued, :starts, :holds)
    ON CONFLICT (owner) DO UPDATE SET
    beat = CASE WHEN schedulers.beat < 0 THEN 0 ELSE schedulers.beat + 1 END,
    rescued = excluded.rescued, holds = excluded.holds,
    starts = CASE WHEN excluded.starts = '' THEN schedulers.starts ELSE excluded.starts END RETURNING beat
""")
_ROSTER = sql("SELECT owner, beat, rescued, starts, served, holds FROM schedulers")
SERVED = sql("UPDATE schedulers SET served = :served WHERE owner = :owner")
RELEASE = sql(f"UPDATE schedulers SET beat = {RELEASED} WHERE owner = :owner")
# Records the end of an owner that has sent no heartbeat since `beat`; its next heartbeat is a first one.
END = sql(f"UPDATE schedulers SET beat = {ENDED} WHERE owner = :owner AND beat = :beat RETURNING owner")
# Deletes the record of an owner that has no requests, and has sent no heartbeat since `beat`.
BURY = sql(f"""
    DELETE FROM schedulers WHERE owner = :owner AND beat = :beat
    AND NOT EXISTS (SELECT 1 FROM queued WHERE queued.owner = schedulers.owner AND {NEW})
    AND NOT EXISTS (SELECT 1 FROM queued WHERE queued.owner = schedulers.owner AND {EVALUATED})
    RETURNING owner
""")

_PLAIN = ("kind", "since", "until", "seen", "lacks", "wakes", "wakes_on", "strikes")

_by_request = attrgetter("request")
_encode = parts.stored_encoder().encode
_plain = msgspec.json.Encoder().encode
_envelope = msgspec.json.Decoder(Envelope).decode
_message = parts.stored_decoder(BuildRequested).decode
_subject = msgspec.json.Decoder(Subject).decode
_decision = parts.stored_decoder(Decision).decode
_holds = msgspec.json.Decoder(list[StoredHold]).decode
_story = msgspec.json.Decoder(StoredContext).decode


class FoundQueued(msgspec.Struct, frozen=True):
    """A queued request found by its id or a build's id, with the scheduler that owns it."""

    queued: QueuedRequest
    owner: str
    before: int | None = None  # of a new request: the number of new requests of its project before it


class OtherScheduler(msgspec.Struct, frozen=True):
    """The last stored heartbeat of another scheduler."""

    owner: str
    beat: int
    rescued: int
    starts: str = ""  # how fast its queues advance, to estimate start times
    served: str = ""  # total size of its recently served requests, by project
    holds: str = ""  # the hosts that it has reserved (StoredHold)


def new(request: Id, project: str, priority: int, envelope: Envelope) -> NewRequest:
    """Return the row of a request that was received. Raise UnicodeDecodeError if it is not UTF-8."""
    message = _plain(envelope)
    digest = int.from_bytes(blake2b(message, digest_size=8).digest(), signed=True) or 1
    return NewRequest(request, digest, project, priority, envelope.sent_at, message.decode())


async def add_new(tx: Transaction, owner: str, requests: Iterable[NewRequest]) -> dict[NewId, str]:
    """Store requests that were not evaluated yet. Return the owner of each: another scheduler, if an earlier
    delivery of the same message is stored.
    """
    values = [structs.astuple(each)[:-1] for each in requests]
    stored = await _INSERT_NEW(tx, sorted(values), owner=owner)
    return {(request, digest): owner for request, digest, owner in stored}


async def drop_new(tx: Transaction, owner: str, requests: Collection[NewId]) -> None:
    """Delete new requests that were handled, except those that another scheduler has adopted."""
    await _DELETE_NEW(tx, sorted(requests), owner=owner)


async def strike(tx: Transaction, owner: str, strikes: Mapping[NewId, int]) -> None:
    """Store how many schedulers in succession have ended with each of these requests of `owner`."""
    await _STRIKE(tx, sorted((*id_, several) for id_, several in strikes.items()), owner=owner)


async def following(tx: Transaction, owner: str, project: str, first: NewKey, most: int) -> list[NewRequest]:
    """Return up to `most` new requests of a project from the key `first` on, in order."""
    priority, since, request, digest = first
    place: dict[str, Any] = {"priority": -priority, "since": since, "request": request, "digest": digest}
    return [
        NewRequest(*row) for row in await _FOLLOWING(tx, owner=owner, project=project, most=most, **place)
    ]


async def depths(tx: Transaction, owner: str) -> list[Depth]:
    """Return how many new requests a scheduler has, by project and priority."""
    return [Depth(*row) for row in await _DEPTHS(tx, owner=owner)]


async def new_counts(tx: Transaction) -> dict[str, int]:
    """Return how many new requests of each project any scheduler has."""
    return dict(await _COUNT_NEW(tx))


async def before(tx: Transaction, project: str, priority: int) -> dict[str, int]:
    """Return how many new requests of a project precede a next one of this priority, by scheduler."""
    return dict(await _BEFORE(tx, project=project, priority=priority))


async def add(tx: Transaction, owner: str, queued: Iterable[QueuedRequest]) -> set[Id]:
    """Store what requests of the scheduler `owner` lack, except requests that another scheduler has stored
    already. Return the ids of the requests that `owner` has now."""
    # Without duplicates, and sorted by id, so that two concurrent insertions do not deadlock.
    new = sorted({request.request: request for request in reversed([*queued])}.values(), key=_by_request)
    values = [[_row(request)[name] for name in _STORED] for request in new]
    ours = {row["request"] for row in await _INSERT(tx, values, owner=owner)}
    stored = [request for request in new if request.request in ours]
    builds = {build: request.request for request in stored for build in request.message.instances}
    if builds:
        await _INSERT_BUILDS(tx, sorted(builds.items()))
    return ours


async def one_of_each(tx: Transaction, requests: Mapping[Id, Id]) -> dict[Id, Id]:
    """Store a waiting request for each instance that is the subject of no waiting request yet; return the
    stored requests by instance.
    """
    return {row["instance"]: row["request"] for row in await _ONE_OF_EACH(tx, sorted(requests.items()))}


async def evaluated(tx: Transaction, queued: Iterable[QueuedRequest]) -> None:
    """Store the results of evaluations in the rows of waiting requests, such as the capacity that a request
    lacks."""
    values = []
    for request in sorted(queued, key=_by_request):
        row = _row(request)
        if request.subject is None:
            row["message"] = ""  # empty: not changed, because some builds may have been cancelled in it
        values.append([row[name] for name in _JUDGED])
    await _LOOKED_AT(tx, values)


async def drop(tx: Transaction, requests: Collection[Id]) -> None:
    """Delete waiting requests."""
    values = [(request,) for request in sorted(requests)]
    for delete in _DELETE:
        await delete(tx, values)


async def without(tx: Transaction, queued: QueuedRequest, builds: Collection[Id]) -> QueuedRequest:
    """Remove builds from a waiting request, for example cancelled ones; return the changed request."""
    left = tuple(build for build in queued.message.instances if build not in builds)
    message = with_instances(queued.message, left)
    await _REWRITE(tx, [(queued.request, _encode(message).decode(), len(left))])
    await _DELETE_BUILD(tx, [(build,) for build in sorted(builds)])
    return replace(queued, message=message)


async def owned(tx: Transaction, owner: str) -> set[Id]:
    """Return the ids of the waiting requests that a scheduler owns."""
    return {row["request"] for row in await _OF_OWNER(tx, owner=owner)}


async def owned_of(tx: Transaction, owner: str, requests: Collection[Id]) -> list[QueuedRequest]:
    """Return the given waiting requests, without those of other schedulers and unreadable ones."""
    rows = await _OWNED_OF(tx, [(id_,) for id_ in sorted(requests)], owner=owner)
    return [request for row in rows if (request := _queued(row)) is not None]


async def of_any_owner(tx: Transaction, requests: Collection[Id]) -> list[QueuedRequest]:
    """Return the given waiting requests, without unreadable ones."""
    rows = await _OF_ANY(tx, [(id_,) for id_ in sorted(requests)])
    return [request for row in rows if (request := _queued(row)) is not None]


async def adopt(
    tx: Transaction, owner: str, before: "OtherScheduler", limit: int
) -> list[QueuedRequest | None]:
    """Take over at most `limit` evaluated requests of the scheduler `before`, whose end is recorded. Return
    None for an unreadable one."""
    rows = await _ADOPT(tx, owner=owner, before=before.owner, beat=before.beat, most=limit)
    return [_queued(row) for row in rows]


async def adopt_new(
    tx: Transaction, owner: str, before: "OtherScheduler", projects: Iterable[str], limit: int
) -> list[NewRequest]:
    """Take over at most `limit` new requests of projects from the scheduler `before`, whose end is recorded.
    Return them without their messages."""
    values = [(project,) for project in projects]
    rows = await _ADOPT_NEW(tx, values, owner=owner, before=before.owner, beat=before.beat, most=limit)
    return [NewRequest(*row) for row in rows]


async def find(tx: Transaction, id_: Id) -> FoundQueued | None:
    """Return the request with this id, or with a build of this id; None if not found."""
    for row in await _FIND(tx, [(id_,)]):
        if (request := _queued(row)) is not None:
            return FoundQueued(request, row["owner"])
    for row in await _FIND_NEW(tx, pattern=f"%{id_}%"):
        *columns, owner, preceding = row
        stored = NewRequest(*columns)
        try:
            message = read(BuildRequested, stored.envelope.body)
        except Undecodable:  # the scheduler that evaluates the message dead-letters it
            continue
        if id_ == message.request or id_ in message.instances:
            return FoundQueued(_unevaluated(message, stored.since, preceding), owner, preceding)
    return None


def _unevaluated(message: BuildRequested, since: float, preceding: int) -> QueuedRequest:
    return QueuedRequest(
        message=message,
        kind="",
        since=since,
        until=since,
        seen=0,
        lacks=f"it is in the backlog, with {preceding} requests of its project before it",
        wakes="it is the turn of its project",
        decision=Decision(code=BACKLOG),
    )


async def cancel(tx: Transaction, requests: Mapping[Id, str]) -> None:
    """Mark waiting requests as cancelled, each with its reason; their schedulers then end them."""
    await _CANCEL(tx, sorted(requests.items()))


async def cancelled(tx: Transaction, owner: str) -> list[Id]:
    """Return the requests of a scheduler that were cancelled."""
    return [row["request"] for row in await _CANCELLED(tx, owner=owner)]


async def beat(tx: Transaction, owner: str, rescued: int, starts: str = "", holds: str = "") -> bool:
    """Store a scheduler's heartbeat: its count of requests placed without a wake (`rescued`), how fast its
    queues advance (`starts`; if empty, the stored value remains), and its reserved hosts (`holds`). Return
    False for a first heartbeat: if the scheduler has sent others, another scheduler takes over its requests.
    """
    [row] = await _BEAT(tx, owner=owner, rescued=rescued, starts=starts, holds=holds)
    return bool(row["beat"] > 0)


async def roster(tx: Transaction) -> list[OtherScheduler]:
    return [OtherScheduler(*row) for row in await _ROSTER(tx)]


def encode_holds(holds: Sequence[StoredHold]) -> str:
    return _encode(holds).decode() if holds else ""


def holds_of(scheduler: OtherScheduler) -> list[StoredHold]:
    """Return the hosts that a scheduler has reserved; an empty list if they are unreadable."""
    try:
        return _holds(scheduler.holds) if scheduler.holds else []
    except NOT_JSON as problem:
        log.warning("the reserved hosts of %s cannot be read: %s", scheduler.owner, problem)
        return []


def _row(request: QueuedRequest) -> dict[str, Any]:
    message, subject = request.message, request.subject
    return {
        "request": request.request,
        "kind": request.kind,
        "priority": priority_of(message.parts),
        "since": request.since,
        "until": request.until,
        "project": message.project,
        "flavor": message.flavor.name,
        "instances": len(message.instances),
        "seen": request.seen,
        "message": _encode(message).decode(),
        "lacks": request.lacks,
        "wakes": request.wakes,
        "wakes_on": request.wakes_on,
        "decision": _encode(request.decision).decode(),
        "story": _encode(request.story).decode(),
        "move": subject.action if subject is not None else "",
        "subject": _plain(subject).decode() if subject is not None else "",
    }


def _queued(row: Mapping[str, Any]) -> QueuedRequest | None:
    """Decode a stored waiting request; log an error and return None if it is unreadable."""
    try:
        message = _message(row["message"])
        subject = _subject(row["subject"]) if row["subject"] else None
        plain = {name: row[name] for name in _PLAIN}
        story = _story(row["story"]) if row["story"] else NO_CONTEXT
        decision = _decision(row["decision"])
        return QueuedRequest(message=message, decision=decision, story=story, subject=subject, **plain)
    except NOT_JSON as problem:
        log.error("request %s waits and cannot be read any more: %s", row["request"], problem)
        return None
