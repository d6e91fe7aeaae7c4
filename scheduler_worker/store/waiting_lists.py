"""SQL for lists of waiting requests, in the order of service."""

from bus.queries import FindWaiting, WaitingKind, WaitingRequest
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from bus.vocabulary import Id
from scheduler_worker.store.parked import CANCELLED

MOST_BUILDS = 4  # builds listed of one request

_OF_PROJECT = "(:project = '' OR project = :project)"
_LISTED = "request kind priority since until project flavor instances lacks wakes move position"
_FIELDS = _LISTED.split()
_LINE = f"""
    (SELECT parked.*, row_number() OVER (PARTITION BY kind ORDER BY priority DESC, since, request) AS position
    FROM parked WHERE NOT ({CANCELLED})) AS line
    """
_IN_ORDER = "ORDER BY line.priority DESC, line.since, line.request"
_LIST = Statement(
    f"""
    SELECT {", ".join(_FIELDS)} FROM {_LINE} WHERE {_OF_PROJECT}
    {_IN_ORDER} LIMIT :most OFFSET :after
    """
)
_LIST_THESE = Statement(
    f"""
    SELECT DISTINCT {", ".join(f"line.{name}" for name in _FIELDS)} FROM {{n}}
    LEFT JOIN moving_builds ON moving_builds.build = n.request
    JOIN {_LINE} ON line.request = n.request OR line.request = moving_builds.move {_IN_ORDER}
    """,
    request=str,
)
_KINDS = Statement(
    f"""
    SELECT kind, min(flavor) AS flavor, count(*) AS requests, sum(instances) AS instances FROM parked
    WHERE NOT ({CANCELLED}) AND {_OF_PROJECT} GROUP BY kind ORDER BY requests DESC, kind LIMIT :most
    """
)
_COUNT = Statement(f"SELECT count(*) AS waiting FROM parked WHERE NOT ({CANCELLED}) AND {_OF_PROJECT}")
_BUILDS_OF = Statement(
    """
    SELECT build, of FROM (SELECT parked_builds.build, parked_builds.request AS of,
    row_number() OVER (PARTITION BY parked_builds.request ORDER BY parked_builds.build) AS nth FROM {n}
    JOIN parked_builds ON parked_builds.request = n.request) AS those WHERE nth <= :most
    """,
    request=str,
)
_INSTANCES = Statement(
    "SELECT m.build, m.move FROM {n} JOIN moving_builds m ON m.move = n.request", request=str
)


async def waiting(tx: Transaction, question: FindWaiting) -> list[WaitingRequest]:
    if question.requests:
        rows = await _LIST_THESE(tx, [(request,) for request in question.requests])
    else:
        rows = await _LIST(tx, project=question.project, most=question.limit, after=question.after)
    builds: dict[Id, list[Id]] = {}
    for row in await _BUILDS_OF(tx, [(row["request"],) for row in rows], most=MOST_BUILDS):
        builds.setdefault(row["of"], []).append(row["build"])
    moves = [(row["request"],) for row in rows if row["move"]]
    builds |= {row["move"]: [row["build"]] for row in (await _INSTANCES(tx, moves) if moves else ())}
    return [
        WaitingRequest(builds=tuple(builds.get(row["request"], ())), **{name: row[name] for name in _FIELDS})
        for row in rows
    ]


async def kinds(tx: Transaction, project: str, limit: int) -> list[WaitingKind]:
    """Return the number of waiting requests of each equivalence class, the largest first."""
    rows = await _KINDS(tx, project=project, most=limit)
    return [
        WaitingKind(row["kind"], row["flavor"], int(row["requests"]), int(row["instances"])) for row in rows
    ]


async def count(tx: Transaction, project: str = "") -> int:
    return int((await _COUNT(tx, project=project))[0]["waiting"])
