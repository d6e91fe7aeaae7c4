"""SQL for decisions (why a request got no host)."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from bus import parts
from bus.decisions import Decision, FindRefused, RefusedBuild, RefusedFound
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.parts import DecisionParts
from bus.queries import DecisionFound
from bus.sql.statement import Transaction, deletes_oldest, sql
from bus.vocabulary import Id

_INSERT = sql("""
    INSERT INTO decisions (at, id, request, project, reason, decision, message, parts)
    SELECT CAST(:at AS double precision), n.id, n.request, n.project, n.reason, n.decision, n.message, n.parts
    FROM {n: id str, request str, project str, reason str, decision str, message str, parts str} WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id
""")
_INSERT_BUILDS = sql("""
    INSERT INTO decided_builds (build, decision) SELECT n.build, n.decision
    FROM {n: build str, decision str} WHERE true ON CONFLICT (build) DO NOTHING RETURNING build
""")
_UPSERT = sql("""
    INSERT INTO decisions (at, id, request, project, reason, decision, message, parts, placed, external)
    SELECT CAST(:at AS double precision), n.id, n.request, n.project, n.reason, n.decision, n.message, '',
    n.placed, true
    FROM {n: id str, request str, project str, reason str, decision str, message str, placed str} WHERE true
    ON CONFLICT (id) DO UPDATE SET at = excluded.at, request = excluded.request, project = excluded.project,
    reason = excluded.reason, decision = excluded.decision, message = excluded.message,
    parts = excluded.parts, placed = excluded.placed
""")
_OF_BUILD = sql("""
    SELECT * FROM decisions WHERE id IN (SELECT decision FROM decided_builds WHERE build = :id)
    OR request = :id ORDER BY at DESC LIMIT 1
""")
_REFUSED = sql("""
    SELECT b.build, d.at, d.project, d.reason, d.message
    FROM decided_builds b JOIN decisions d ON d.id = b.decision
    WHERE b.build > :after AND d.at >= :since AND NOT d.external AND (:project = '' OR d.project = :project)
    ORDER BY b.build LIMIT :most
""")
_REQUESTS_OF = sql("""
    SELECT b.build, d.message FROM {n: build str} JOIN decided_builds b ON b.build = n.build
    JOIN decisions d ON d.id = b.decision
""")
_PARTS_OF = sql("SELECT d.id, d.parts FROM {n: id str} JOIN decisions d ON d.id = n.id")
_BUILDS = sql("SELECT build FROM decided_builds WHERE decision = :id ORDER BY build")
_PRUNE = deletes_oldest("decisions", "id")
_PRUNE_BUILDS = sql(
    "DELETE FROM decided_builds WHERE decision IN (SELECT n.id FROM {n: id str}) RETURNING build"
)

_encode = parts.stored_encoder().encode
_message = parts.stored_decoder(BuildRequested).decode
_parts = parts.stored_decoder(DecisionParts).decode
_placed = parts.stored_decoder(BuildPlaced).decode
_decision = parts.stored_decoder(Decision).decode


async def add(
    tx: Transaction, ended: Iterable[tuple[BuildRequested, BuildUnplaceable]], at: float
) -> Mapping[Id, BuildRequested]:
    """Store the decisions about requests that got no host; stored decisions are not changed. Return, by
    build, the requests of the builds that had such a decision before.
    """
    found: dict[Id, tuple[BuildRequested, BuildUnplaceable]] = {}
    for request, message in ended:
        found.setdefault(message.instances[0], (request, message))
    builds = {build: id_ for id_, (_, end) in found.items() for build in end.instances}
    if not builds:
        return {}
    new = {row["build"] for row in await _INSERT_BUILDS(tx, sorted(builds.items()))}
    ordered = [(id_, *found[id_]) for id_ in sorted(found) if id_ in new]
    rows = [(id_, end.request, *_row(request, end.reason, end.decision), "") for id_, request, end in ordered]
    if rows:
        await _INSERT(tx, rows, at=at)
    if not (known := sorted(builds.keys() - new)):
        return {}
    stored = await _REQUESTS_OF(tx, [(build,) for build in known])
    return {row["build"]: _message(row["message"]) for row in stored if row["message"]}


async def put_selected(
    tx: Transaction, selected: Iterable[tuple[BuildRequested, BuildPlaced | BuildUnplaceable]], at: float
) -> None:
    """Store the latest decision about each instance that another system builds."""
    rows = {}
    for request, end in selected:
        for id_ in (end.build,) if isinstance(end, BuildPlaced) else end.instances:
            reason = "" if isinstance(end, BuildPlaced) else end.reason
            placed = _encode(end).decode() if isinstance(end, BuildPlaced) else ""
            rows[id_] = (id_, request.request, *_row(request, reason, end.decision), placed)
    listed = [rows[id_] for id_ in sorted(rows)]
    await _UPSERT(tx, listed, at=at)
    await _INSERT_BUILDS(tx, [(id_, id_) for id_ in sorted(rows)])


class StoredRefusal(NamedTuple):
    """The decision to refuse a request of a feature, such as a move."""

    id: Id
    request: BuildRequested | None  # for its host, if one was searched
    reason: str
    decision: Decision
    parts: DecisionParts


async def add_refusals(
    tx: Transaction, refusals: Iterable[StoredRefusal], at: float
) -> Mapping[Id, DecisionParts]:
    """Store the decisions about refused requests of features; stored decisions are not changed. Return, by
    id, the parts of the decisions that were stored before.
    """
    rows = {
        each.id: (
            *(each.id, each.id),
            *_row(each.request, each.reason, each.decision),
            _encode(each.parts).decode(),
        )
        for each in refusals
    }
    new = {row["id"] for row in await _INSERT(tx, [rows[id_] for id_ in sorted(rows)], at=at)}
    if not (known := sorted(rows.keys() - new)):
        return {}
    stored = await _PARTS_OF(tx, [(id_,) for id_ in known])
    return {row["id"]: _parts(row["parts"]) for row in stored if row["parts"]}


def _row(request: BuildRequested | None, reason: str, decision: Decision) -> tuple[str, str, str, str]:
    project, message = ("", "") if request is None else (request.project, _encode(request).decode())
    return project, reason, _encode(decision).decode(), message


async def decision_of(tx: Transaction, id_: Id) -> DecisionFound:
    """Return the decision that explains why a build or request got no host, or a move was refused; its
    `known` is False if no decision is stored.
    """
    rows = await _OF_BUILD(tx, id=id_)
    if not rows:
        return DecisionFound()
    row = rows[0]
    builds = tuple(build["build"] for build in await _BUILDS(tx, id=row["id"]))
    of_features = _parts(row["parts"]) if row["parts"] else DecisionParts()
    return DecisionFound(
        known=True,
        request=_message(row["message"]) if row["message"] else None,
        builds=builds or of_features.builds,
        reason=row["reason"],
        decision=_decision(row["decision"]),
        at=row["at"],
        parts=of_features,
        placed=_placed(row["placed"]) if row["placed"] else None,
    )


REFUSED_PAGE = 200  # builds in one answer, which has at most 1 MiB: a reason may have MAX_CAUSE characters


async def refused(tx: Transaction, question: FindRefused, limit: int = REFUSED_PAGE) -> RefusedFound:
    """Return a page of the builds that ended without a host: after the build id `question.after`, the next
    `limit` builds with a decision are read and filtered."""
    rows = await _REFUSED(
        tx, after=question.after, since=question.since, project=question.project, most=limit
    )
    asked = [(row, _message(row["message"])) for row in rows]
    return RefusedFound(
        builds=tuple(
            RefusedBuild(
                build=row["build"],
                request=request.request,
                name=request.name,
                project=row["project"],
                flavor=request.flavor.name,
                since=row["at"],
                reason=row["reason"],
            )
            for row, request in asked
            if question.reply_to in ("", request.reply_to)
        ),
        last=rows[-1]["build"] if len(rows) == limit else "",
    )


async def prune(tx: Transaction, before: float, limit: int) -> int:
    """Delete up to `limit` decisions from before this time; return their number."""
    deleted = [(row["id"],) for row in await _PRUNE(tx, before=before, most=limit)]
    if deleted:
        await _PRUNE_BUILDS(tx, deleted)
    return len(deleted)


_DECIDED = sql("""
    SELECT n.id, d.project FROM {n: id str} JOIN decided_builds b ON b.build = n.id
    JOIN decisions d ON d.id = b.decision WHERE d.project <> ''
""")
_DECIDED_REQUESTS = sql(
    "SELECT n.id, d.project FROM {n: id str} JOIN decisions d ON d.request = n.id WHERE d.project <> ''"
)


async def projects_of(tx: Transaction, ids: Collection[Id]) -> dict[Id, str]:
    """Return, by id, the project of each build or request that ended without a host."""
    rows = [(id_,) for id_ in ids]
    found: dict[Id, str] = {}
    for statement in (_DECIDED_REQUESTS, _DECIDED):
        found |= {row["id"]: row["project"] for row in await statement(tx, rows)}
    return found
