"""SQL for waiting requests. Functions take and return values, not rows; each batch is one statement."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import msgspec

from bus import parts
from bus.context import NO_CONTEXT, StoredContext
from bus.decisions import Decision
from bus.errors import NOT_JSON
from bus.messages import BuildRequested
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Id
from features.moves.core.start import MoveStart
from features.waiting.core.waiting_request import with_instances
from features.waiting.core.waiting_shares import Contender, QueueKey
from features.waiting.messages import priority_of
from features.waiting.tables.backlog import FoundBacklog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ParkedRequest:
    """A stored waiting request: the request itself, or a move with the request for its destination."""

    message: BuildRequested
    kind: str
    since: float
    until: float
    seen: int  # placement's last change number at the last evaluation
    lacks: str  # why the request has no host yet, as a sentence
    wakes: str = ""  # which change would wake the request, as a sentence
    decision: Decision = field(default_factory=Decision)
    story: StoredContext = NO_CONTEXT  # tracing context of the request's message
    start: MoveStart | None = None  # for a move: its data at the last evaluation
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
        project = self.message.project if self.start is None else ""
        return Contender(project, priority_of(self.message.parts), self.since)


class StoredHold(msgspec.Struct, frozen=True, array_like=True):
    """A host that a scheduler has reserved for a waiting request or move, as stored with its heartbeat."""

    root: Id
    request: Id
    project: str  # of the request or of the instance that moves
    since: float  # since when the host is reserved
    until: float  # end of the request's waiting time
    zone: str = ""  # the zone that the request names; "": any
    move: bool = False


CANCELLED = "cancelled <> ''"  # an index has this condition, and is used only if a query repeats it literally
_TEXTS = "request kind project flavor message lacks wakes wakes_on decision story move"
_STORED = dict.fromkeys(_TEXTS.split(), "str")
_STORED |= {"priority": "int", "since": "float", "until": "float", "instances": "int", "seen": "int"}
_CHANGING = "request kind seen lacks wakes wakes_on decision flavor message"
_JUDGED = {name: _STORED[name] for name in _CHANGING.split()}


def _columns(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())


_INSERT = sql(f"""
    INSERT INTO parked (owner, {", ".join(_STORED)})
    SELECT :owner, {", ".join(f"n.{name}" for name in _STORED)} FROM {{n: {_columns(_STORED)}}} WHERE true
    ON CONFLICT (request) DO UPDATE SET owner = parked.owner WHERE parked.owner = excluded.owner
    RETURNING request
""")
_INSERT_BUILDS = sql("""
    INSERT INTO parked_builds (build, request) SELECT n.build, n.request
    FROM {n: build str, request str} WHERE true
    ON CONFLICT (build) DO UPDATE SET request = excluded.request RETURNING build
""")
_LOOKED_AT = sql(f"""
    UPDATE parked SET kind = n.kind, seen = n.seen, lacks = n.lacks, wakes = n.wakes,
    wakes_on = n.wakes_on, decision = n.decision, flavor = n.flavor,
    message = CASE WHEN n.message = '' THEN parked.message ELSE n.message END
    FROM {{n: {_columns(_JUDGED)}}} WHERE parked.request = n.request RETURNING parked.request
""")
_REWRITE = sql("""
    UPDATE parked SET message = n.message, instances = n.instances
    FROM {n: request str, message str, instances int}
    WHERE parked.request = n.request RETURNING parked.request
""")
_DELETE = [
    sql(f"DELETE FROM {table} WHERE {id_} IN (SELECT n.id FROM {{n: id str}}) RETURNING {id_}")
    for table, id_ in (("moving_builds", "move"), ("parked_builds", "request"), ("parked", "request"))
]
_ONE_OF_EACH = sql("""
    INSERT INTO moving_builds (build, move) SELECT n.build, n.move FROM {n: build str, move str} WHERE true
    ON CONFLICT (build) DO UPDATE SET move = moving_builds.move RETURNING build, move
""")
_DELETE_BUILD = sql("DELETE FROM parked_builds WHERE build IN (SELECT n.id FROM {n: id str}) RETURNING build")
_KEPT = "request, kind, since, until, seen, message, lacks, wakes, wakes_on, decision, story, move, strikes"
_OF_OWNER = sql("SELECT request FROM parked WHERE owner = :owner")
_ADOPT = sql(f"""
    UPDATE parked SET owner = :owner,
    strikes = CASE WHEN owner = '' OR strikes > 0 THEN strikes ELSE 1 END WHERE request IN
    (SELECT request FROM parked WHERE owner = :before LIMIT :most) RETURNING {_KEPT}
""")
_OWNED_OF = sql(f"""
    SELECT {_KEPT} FROM parked JOIN {{n: id str}} ON n.id = parked.request WHERE owner = :owner
""")
_STRIKE = sql("""
    UPDATE parked SET strikes = n.strikes FROM {n: request str, strikes int}
    WHERE parked.request = n.request RETURNING parked.request
""")
RELEASE = sql("UPDATE parked SET owner = '', strikes = 0 WHERE owner = :owner RETURNING request")
_FIND = sql("""
    SELECT DISTINCT parked.* FROM {n: id str}
    JOIN parked_builds ON parked_builds.build = n.id OR parked_builds.request = n.id
    JOIN parked ON parked.request = parked_builds.request
""")
_CANCEL = sql("""
    UPDATE parked SET cancelled = n.why FROM {n: request str, why str}
    WHERE parked.request = n.request RETURNING parked.request
""")
_CANCELLED = sql(f"SELECT request FROM parked WHERE owner = :owner AND {CANCELLED}")

_BEAT = sql("""
    INSERT INTO schedulers (owner, beat, reserved, rescued, starts, holds)
    VALUES (:owner, 0, :reserved, :rescued, :starts, :holds)
    ON CONFLICT (owner) DO UPDATE SET beat = schedulers.beat + 1, reserved = excluded.reserved,
    rescued = excluded.rescued, holds = excluded.holds,
    starts = CASE WHEN excluded.starts = '' THEN schedulers.starts ELSE excluded.starts END RETURNING beat
""")
_ROSTER = sql("SELECT owner, beat, reserved, rescued, starts, served, paces, holds FROM schedulers")
_OWNERS = sql("SELECT DISTINCT owner FROM parked")
SERVED = sql("UPDATE schedulers SET served = :served, paces = :paces WHERE owner = :owner")
# Deletes the record of an owner that has sent no heartbeat since `beat`.
BURY = sql("DELETE FROM schedulers WHERE owner = :owner AND beat = :beat RETURNING owner")

_PLAIN = ("kind", "since", "until", "seen", "lacks", "wakes", "wakes_on", "strikes")

_by_request = attrgetter("request")
_encode = parts.stored_encoder().encode
_message = parts.stored_decoder(BuildRequested).decode
_start = parts.stored_decoder(MoveStart).decode
_decision = parts.stored_decoder(Decision).decode
_holds = msgspec.json.Decoder(list[StoredHold]).decode
_story = msgspec.json.Decoder(StoredContext).decode


class FoundParked(msgspec.Struct, frozen=True):
    """A waiting request found by its id or a build's id, with the scheduler that owns it."""

    parked: ParkedRequest
    owner: str
    backlogged: FoundBacklog | None = None  # for a request in the backlog: its place there


class OtherScheduler(msgspec.Struct, frozen=True):
    """The last stored heartbeat of another scheduler."""

    owner: str
    beat: int
    reserved: str
    rescued: int
    starts: str = ""  # how fast its queues advance, to estimate start times
    served: str = ""  # total size of its recently served requests, by project
    paces: str = ""  # how fast it serves the backlog of each project, to estimate evaluation times
    holds: str = ""  # the hosts in `reserved`, with the projects and times of the requests (StoredHold)


async def add(tx: Transaction, owner: str, parked: Iterable[ParkedRequest]) -> set[Id]:
    """Store waiting requests of the scheduler `owner`, except requests that another scheduler has stored
    already. Return the ids of the requests that `owner` has now."""
    # Without duplicates, and sorted by id, so that two concurrent insertions do not deadlock.
    new = sorted({request.request: request for request in reversed([*parked])}.values(), key=_by_request)
    values = [[_row(request)[name] for name in _STORED] for request in new]
    ours = {row["request"] for row in await _INSERT(tx, values, owner=owner)}
    stored = [request for request in new if request.request in ours]
    builds = {build: request.request for request in stored for build in request.message.instances}
    if builds:
        await _INSERT_BUILDS(tx, sorted(builds.items()))
    return ours


async def one_of_each(tx: Transaction, moves: Mapping[Id, Id]) -> dict[Id, Id]:
    """Store a waiting move for each build that has no waiting move yet; return the stored moves by build."""
    return {row["build"]: row["move"] for row in await _ONE_OF_EACH(tx, sorted(moves.items()))}


async def evaluated(tx: Transaction, parked: Iterable[ParkedRequest]) -> None:
    """Store the results of evaluations in the rows of waiting requests, such as the capacity that a request
    lacks."""
    values = []
    for request in sorted(parked, key=_by_request):
        row = _row(request)
        if request.start is None:
            row["message"] = ""  # empty: not changed, because some builds may have been cancelled in it
        values.append([row[name] for name in _JUDGED])
    await _LOOKED_AT(tx, values)


async def drop(tx: Transaction, requests: Collection[Id]) -> None:
    values = [(request,) for request in sorted(requests)]
    for delete in _DELETE:
        await delete(tx, values)


async def without(tx: Transaction, parked: ParkedRequest, builds: Collection[Id]) -> ParkedRequest:
    left = tuple(build for build in parked.message.instances if build not in builds)
    message = with_instances(parked.message, left)
    await _REWRITE(tx, [(parked.request, _encode(message).decode(), len(left))])
    await _DELETE_BUILD(tx, [(build,) for build in sorted(builds)])
    return replace(parked, message=message)


async def owned(tx: Transaction, owner: str) -> set[Id]:
    """Return the ids of the waiting requests that a scheduler owns."""
    return {row["request"] for row in await _OF_OWNER(tx, owner=owner)}


async def owned_of(tx: Transaction, owner: str, requests: Collection[Id]) -> list[ParkedRequest]:
    """Return the given waiting requests, without those of other schedulers and unreadable ones."""
    rows = await _OWNED_OF(tx, [(id_,) for id_ in sorted(requests)], owner=owner)
    return [request for row in rows if (request := _parked(row)) is not None]


async def adopt(tx: Transaction, owner: str, before: str, limit: int) -> tuple[list[ParkedRequest], bool]:
    """Take over at most `limit` waiting requests of the scheduler `before`. Return the readable requests, and
    True if more requests may remain."""
    rows = await _ADOPT(tx, owner=owner, before=before, most=limit)
    return [request for row in rows if (request := _parked(row)) is not None], len(rows) == limit


async def strike(tx: Transaction, strikes: Mapping[Id, int]) -> None:
    """Store for each waiting request its strikes: how many schedulers in succession have crashed while they
    evaluated it.
    """
    await _STRIKE(tx, sorted(strikes.items()))


async def find(tx: Transaction, ids: Collection[Id]) -> list[FoundParked]:
    rows = await _FIND(tx, [(id_,) for id_ in ids])
    return [FoundParked(request, row["owner"]) for row in rows if (request := _parked(row))]


async def cancel(tx: Transaction, requests: Mapping[Id, str]) -> None:
    """Mark waiting requests as cancelled, each with its reason; their schedulers then end them."""
    await _CANCEL(tx, sorted(requests.items()))


async def cancelled(tx: Transaction, owner: str) -> list[Id]:
    return [row["request"] for row in await _CANCELLED(tx, owner=owner)]


async def beat(
    tx: Transaction, owner: str, reserved: str, rescued: int, starts: str = "", holds: str = ""
) -> bool:
    """Store a scheduler's heartbeat: its reserved hosts (`reserved`, and details in `holds`), its count of
    requests placed without a wake (`rescued`), and how fast its queues advance (`starts`; if empty, the
    stored value remains). Return False if another scheduler took over its waiting requests.
    """
    [row] = await _BEAT(tx, owner=owner, reserved=reserved, rescued=rescued, starts=starts, holds=holds)
    return bool(row["beat"] > 0)


async def roster(tx: Transaction) -> list[OtherScheduler]:
    return [OtherScheduler(*row) for row in await _ROSTER(tx)]


def encode_holds(holds: Collection[StoredHold]) -> str:
    return _encode(holds).decode() if holds else ""


def holds_of(scheduler: OtherScheduler) -> list[StoredHold]:
    """Return the hosts that a scheduler has reserved; an empty list if they are unreadable, or if a scheduler
    of an earlier version stored its heartbeat."""
    try:
        return _holds(scheduler.holds) if scheduler.holds else []
    except NOT_JSON as problem:
        log.warning("the reserved hosts of %s cannot be read: %s", scheduler.owner, problem)
        return []


async def owners(tx: Transaction) -> set[str]:
    return {row["owner"] for row in await _OWNERS(tx)}


def _row(request: ParkedRequest) -> dict[str, Any]:
    message, start = request.message, request.start
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
        "message": _encode(start or message).decode(),
        "lacks": request.lacks,
        "wakes": request.wakes,
        "wakes_on": request.wakes_on,
        "decision": _encode(request.decision).decode(),
        "story": _encode(request.story).decode(),
        "move": start.asked.kind if start is not None else "",
    }


def _parked(row: Mapping[str, Any]) -> ParkedRequest | None:
    """Decode a stored waiting request; log an error and return None if it is unreadable."""
    try:
        start = _start(row["message"]) if row["move"] else None
        message = _message(row["message"]) if start is None else start.request()
        plain = {name: row[name] for name in _PLAIN}
        story = _story(row["story"]) if row["story"] else NO_CONTEXT
        decision = _decision(row["decision"])
        return ParkedRequest(message=message, decision=decision, story=story, start=start, **plain)
    except NOT_JSON as problem:
        log.error("request %s waits and cannot be read any more: %s", row["request"], problem)
        return None
