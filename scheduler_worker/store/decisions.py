"""SQL for decisions (why a build got no host or a move was refused), waiting requests and clients."""

from collections.abc import Collection, Iterable

import msgspec
from msgspec import structs

from bus import parts
from bus.clients import RegisteredClient
from bus.decisions import Decision, FindRefused, RefusedBuild, RefusedFound
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.moves import MoveRefused, MoveRequested
from bus.queries import DecisionFound, FindWaiting, WaitingKind, WaitingRequest
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from bus.vocabulary import Id
from scheduler_worker.store.parked import CANCELLED

_INSERT = sql("""
    INSERT INTO decisions (at, id, request, project, reason, decision, message, move)
    SELECT CAST(:at AS double precision), n.id, n.request, n.project, n.reason, n.decision, n.message, n.move
    FROM {n: id str, request str, project str, reason str, decision str, message str, move str} WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id
""")
_INSERT_BUILDS = sql("""
    INSERT INTO decided_builds (build, decision) SELECT n.build, n.decision
    FROM {n: build str, decision str} WHERE true ON CONFLICT (build) DO NOTHING RETURNING build
""")
_UPSERT = sql("""
    INSERT INTO decisions (at, id, request, project, reason, decision, message, move, placed, external)
    SELECT CAST(:at AS double precision), n.id, n.request, n.project, n.reason, n.decision, n.message, '',
    n.placed, true
    FROM {n: id str, request str, project str, reason str, decision str, message str, placed str} WHERE true
    ON CONFLICT (id) DO UPDATE SET at = excluded.at, request = excluded.request, project = excluded.project,
    reason = excluded.reason, decision = excluded.decision, message = excluded.message,
    move = excluded.move, placed = excluded.placed
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
_BUILDS = sql("SELECT build FROM decided_builds WHERE decision = :id ORDER BY build")
_PRUNE = sql("""
    DELETE FROM decisions WHERE id IN
    (SELECT id FROM decisions WHERE at < :before ORDER BY at LIMIT :most) RETURNING id
""")
_PRUNE_BUILDS = sql(
    "DELETE FROM decided_builds WHERE decision IN (SELECT n.id FROM {n: id str}) RETURNING build"
)

_encode = parts.stored_encoder().encode
_cells = msgspec.json.Decoder(tuple[str, ...]).decode
_message = parts.stored_decoder(BuildRequested).decode
_move = parts.stored_decoder(MoveRequested).decode
_placed = parts.stored_decoder(BuildPlaced).decode
_decision = parts.stored_decoder(Decision).decode


async def add(tx: Transaction, ended: Iterable[tuple[BuildRequested, BuildUnplaceable]], at: float) -> None:
    """Store the decisions about requests that got no host; stored decisions are not changed."""
    found = {message.instances[0]: (request, message) for request, message in ended}
    ordered = [(id_, *found[id_]) for id_ in sorted(found)]
    rows = [(id_, end.request, *_row(request, end.reason, end.decision), "") for id_, request, end in ordered]
    added = sorted(row["id"] for row in await _INSERT(tx, rows, at=at))
    if builds := {build: id_ for id_ in added for build in found[id_][1].instances}:
        await _INSERT_BUILDS(tx, sorted(builds.items()))


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


async def add_moves(
    tx: Transaction, ended: Iterable[tuple[MoveRequested, BuildRequested | None, MoveRefused]], at: float
) -> None:
    """Store the decisions about refused moves, with the requests for their destinations if any were made."""
    rows = {}
    for asked, request, message in ended:
        decision = structs.replace(message.decision, code=message.code)
        stored = _row(request, message.reason, decision)
        rows[asked.move] = (asked.move, asked.move, *stored, _encode(asked).decode())
    await _INSERT(tx, [rows[move] for move in sorted(rows)], at=at)


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
    move = _move(row["move"]) if row["move"] else None
    return DecisionFound(
        known=True,
        request=_message(row["message"]) if row["message"] else None,
        builds=builds if move is None else (move.build,),
        reason=row["reason"],
        decision=_decision(row["decision"]),
        at=row["at"],
        move=move,
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
    deleted = [(row["id"],) for row in await _PRUNE(tx, before=before, most=limit)]
    if deleted:
        await _PRUNE_BUILDS(tx, deleted)
    return len(deleted)


MOST_BUILDS = 4  # most builds listed for one request

_OF_PROJECT = "(:project = '' OR project = :project)"
_LISTED = "request kind priority since until project flavor instances lacks wakes wakes_on move position"
_FIELDS = _LISTED.split()
_READ = ("owner", *_FIELDS)
_LINE = f"""
    (SELECT parked.*, row_number() OVER (PARTITION BY kind, wakes_on
    ORDER BY priority DESC, since, request) AS position FROM parked WHERE NOT ({CANCELLED})) AS line
    """
_IN_ORDER = "ORDER BY line.priority DESC, line.since, line.request"
_LIST = sql(f"""
    SELECT {", ".join(_READ)} FROM {_LINE} WHERE {_OF_PROJECT}
    {_IN_ORDER} LIMIT :most OFFSET :after
""")
_LIST_THESE = sql(f"""
    SELECT DISTINCT {", ".join(f"line.{name}" for name in _READ)} FROM {{n: request str}}
    LEFT JOIN moving_builds ON moving_builds.build = n.request
    JOIN {_LINE} ON line.request = n.request OR line.request = moving_builds.move {_IN_ORDER}
""")
_KINDS = sql(f"""
    SELECT kind, min(flavor) AS flavor, count(*) AS requests, sum(instances) AS instances FROM parked
    WHERE NOT ({CANCELLED}) AND {_OF_PROJECT} GROUP BY kind ORDER BY requests DESC, kind LIMIT :most
""")
_COUNT = sql(f"SELECT count(*) AS waiting FROM parked WHERE NOT ({CANCELLED}) AND {_OF_PROJECT}")
_COUNT_BY_PROJECT = sql(f"""
    SELECT parked.project, count(*) AS waiting FROM {{n: project str}}
    JOIN parked ON parked.project = n.project WHERE NOT ({CANCELLED}) GROUP BY parked.project
""")
_BUILDS_OF = sql("""
    SELECT build, of FROM (SELECT parked_builds.build, parked_builds.request AS of,
    row_number() OVER (PARTITION BY parked_builds.request ORDER BY parked_builds.build) AS nth
    FROM {n: request str} JOIN parked_builds ON parked_builds.request = n.request) AS those WHERE nth <= :most
""")
_INSTANCES = sql("SELECT m.build, m.move FROM {n: request str} JOIN moving_builds m ON m.move = n.request")


async def waiting(tx: Transaction, question: FindWaiting) -> list[tuple[WaitingRequest, str]]:
    """Return waiting requests by priority and age, each with the name of the scheduler that owns it."""
    if question.requests:
        rows = await _LIST_THESE(tx, [(request,) for request in question.requests])
    else:
        rows = await _LIST(tx, project=question.project, most=question.limit, after=question.after)
    builds: dict[Id, list[Id]] = {}
    for row in await _BUILDS_OF(tx, [(row["request"],) for row in rows], most=MOST_BUILDS):
        builds.setdefault(row["of"], []).append(row["build"])
    moves = [(row["request"],) for row in rows if row["move"]]
    builds |= {row["move"]: [row["build"]] for row in (await _INSTANCES(tx, moves) if moves else ())}
    listed = [(row, {name: row[name] for name in _FIELDS}) for row in rows]
    return [
        (WaitingRequest(builds=tuple(builds.get(row["request"], ())), **fields), row["owner"])
        for row, fields in listed
    ]


async def kinds(tx: Transaction, project: str, limit: int) -> list[WaitingKind]:
    """List the equivalence classes of a project's waiting requests, largest first, each with its numbers of
    requests and instances.
    """
    rows = await _KINDS(tx, project=project, most=limit)
    return [
        WaitingKind(row["kind"], row["flavor"], int(row["requests"]), int(row["instances"])) for row in rows
    ]


async def count(tx: Transaction, project: str = "") -> int:
    return int((await _COUNT(tx, project=project))[0]["waiting"])


async def counts(tx: Transaction, projects: Collection[str]) -> dict[str, int]:
    """Return how many requests of each of the given projects wait; projects without any are missing."""
    rows = await _COUNT_BY_PROJECT(tx, [(project,) for project in set(projects)]) if projects else ()
    return {row["project"]: int(row["waiting"]) for row in rows}


_ALL = sql("SELECT client, project FROM client_projects ORDER BY client, project")
_NAMED = sql("""
    SELECT c.client, c.project FROM {n: client str} JOIN client_projects c ON c.client = n.client
    ORDER BY c.client, c.project
""")
_ROLES = sql("SELECT client, role, cells FROM client_roles")
_NAMED_ROLES = sql(
    "SELECT r.client, r.role, r.cells FROM {n: client str} JOIN client_roles r ON r.client = n.client"
)
_DROP_ROLE = sql("DELETE FROM client_roles WHERE client IN (SELECT n.client FROM {n: client str})")
_ADD_ROLE = sql("""
    INSERT INTO client_roles (client, role, cells) SELECT n.client, n.role, n.cells
    FROM {n: client str, role str, cells str} WHERE true ON CONFLICT (client) DO NOTHING
""")
_DROP = sql("DELETE FROM client_projects WHERE client IN (SELECT n.client FROM {n: client str})")
_ADD = sql("""
    INSERT INTO client_projects (client, project) SELECT n.client, n.project
    FROM {n: client str, project str} WHERE true ON CONFLICT (client, project) DO NOTHING
""")
_PARKED = sql("""
    SELECT n.id, parked.project FROM {n: id str} JOIN parked_builds b ON b.build = n.id OR b.request = n.id
    JOIN parked ON parked.request = b.request
""")
_DECIDED = sql("""
    SELECT n.id, d.project FROM {n: id str} JOIN decided_builds b ON b.build = n.id
    JOIN decisions d ON d.id = b.decision WHERE d.project <> ''
""")
_DECIDED_REQUESTS = sql(
    "SELECT n.id, d.project FROM {n: id str} JOIN decisions d ON d.request = n.id WHERE d.project <> ''"
)


async def registered(tx: Transaction, names: Collection[str] = ()) -> list[RegisteredClient]:
    """Return the registered clients with the given names (without names: all clients), sorted by name."""
    values = [(name,) for name in sorted(set(names))]
    rows = await _NAMED(tx, values) if names else await _ALL(tx)
    roles = await _NAMED_ROLES(tx, values) if names else await _ROLES(tx)
    projects: dict[str, list[str]] = {row["client"]: [] for row in roles}
    for row in rows:
        projects.setdefault(row["client"], []).append(row["project"])
    of_client = {row["client"]: (row["role"], _cells(row["cells"])) for row in roles}
    found = []
    for name in sorted(projects):
        role, cells = of_client.get(name, ("", ()))
        found.append(RegisteredClient(name=name, projects=tuple(projects[name]), role=role, cells=cells))
    return found


async def bind(tx: Transaction, client: RegisteredClient) -> None:
    """Set a client's projects, cells and role (its permissions); without projects and role, remove it."""
    await _DROP(tx, [(client.name,)])
    await _DROP_ROLE(tx, [(client.name,)])
    if client.projects:
        await _ADD(tx, [(client.name, project) for project in sorted(set(client.projects))])
    if client.role:
        await _ADD_ROLE(tx, [(client.name, client.role, _encode(client.cells).decode())])


async def projects_of(tx: Transaction, ids: Collection[Id]) -> dict[Id, str]:
    """Return, by id, the project of each build or request that waits for a host or ended without a host."""
    rows = [(id_,) for id_ in ids]
    found: dict[Id, str] = {}
    for statement in (_DECIDED_REQUESTS, _DECIDED, _PARKED):
        found |= {row["id"]: row["project"] for row in await statement(tx, rows)}
    return found
