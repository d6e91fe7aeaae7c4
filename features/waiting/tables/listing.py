"""SQL that lists and counts waiting requests."""

from collections.abc import Collection

from bus.queries import FindWaiting, WaitingKind, WaitingRequest
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Id
from features.waiting.tables.queued import WAITS

MOST_BUILDS = 4  # most builds listed for one request

_OF_PROJECT = "(:project = '' OR project = :project)"
_LISTED = "request kind priority since until project flavor instances lacks wakes wakes_on move position"
_FIELDS = _LISTED.split()
_READ = ("owner", *_FIELDS)
_LINE = f"""
    (SELECT queued.*, row_number() OVER (PARTITION BY kind, wakes_on
    ORDER BY priority DESC, since, request) AS position FROM queued WHERE {WAITS}) AS line
    """
_IN_ORDER = "ORDER BY line.priority DESC, line.since, line.request"
_LIST = sql(f"""
    SELECT {", ".join(_READ)} FROM {_LINE} WHERE {_OF_PROJECT}
    {_IN_ORDER} LIMIT :most OFFSET :after
""")
_LIST_THESE = sql(f"""
    SELECT DISTINCT {", ".join(f"line.{name}" for name in _READ)} FROM {{n: request str}}
    LEFT JOIN subjects ON subjects.instance = n.request
    JOIN {_LINE} ON line.request = n.request OR line.request = subjects.request {_IN_ORDER}
""")
_KINDS = sql(f"""
    SELECT kind, min(flavor) AS flavor, count(*) AS requests, sum(instances) AS instances FROM queued
    WHERE {WAITS} AND {_OF_PROJECT} GROUP BY kind ORDER BY requests DESC, kind LIMIT :most
""")
_COUNT = sql(f"SELECT count(*) AS waiting FROM queued WHERE {WAITS} AND {_OF_PROJECT}")
_COUNT_BY_PROJECT = sql(f"""
    SELECT queued.project, count(*) AS waiting FROM {{n: project str}}
    JOIN queued ON queued.project = n.project WHERE {WAITS} GROUP BY queued.project
""")
_BUILDS_OF = sql("""
    SELECT build, of FROM (SELECT queued_builds.build, queued_builds.request AS of,
    row_number() OVER (PARTITION BY queued_builds.request ORDER BY queued_builds.build) AS nth
    FROM {n: request str} JOIN queued_builds ON queued_builds.request = n.request) AS those WHERE nth <= :most
""")
_INSTANCES = sql("SELECT s.instance, s.request FROM {n: request str} JOIN subjects s USING (request)")


async def waiting(tx: Transaction, question: FindWaiting) -> list[tuple[WaitingRequest, str]]:
    """Return waiting requests by priority and age, each with the name of the scheduler that owns it."""
    if question.requests:
        rows = await _LIST_THESE(tx, [(request,) for request in question.requests])
    else:
        rows = await _LIST(tx, project=question.project, most=question.limit, after=question.after)
    builds: dict[Id, list[Id]] = {}
    for row in await _BUILDS_OF(tx, [(row["request"],) for row in rows], most=MOST_BUILDS):
        builds.setdefault(row["of"], []).append(row["build"])
    having = [(row["request"],) for row in rows if row["move"]]  # a subject
    builds |= {row["request"]: [row["instance"]] for row in (await _INSTANCES(tx, having) if having else ())}
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


_PROJECTS = sql("""
    SELECT n.id, queued.project FROM {n: id str} JOIN queued_builds b ON b.build = n.id OR b.request = n.id
    JOIN queued ON queued.request = b.request AND queued.digest = 0
""")


async def projects_of(tx: Transaction, ids: Collection[Id]) -> dict[Id, str]:
    """Return, by id, the project of each build or request that waits for a host."""
    return {row["id"]: row["project"] for row in await _PROJECTS(tx, [(id_,) for id_ in ids])}
