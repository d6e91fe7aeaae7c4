"""Lists builds page by page, always through an index."""

from bus.queries import FindInstances, Instance, InstancesFound
from bus.sql.database import Database
from bus.sql.statement import Statement
from cell_conductor.core.build import Build
from cell_conductor.schema import UNSETTLED, UNSETTLED_STATUSES, status_in
from cell_conductor.store import BUILD, readable

_WANTED = {
    "project": "project = :project",
    "host": "(host = :host OR root = :host)",
    "name": "name = :name AND name <> ''",
}


class Listing:
    """Answers queries for builds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements: dict[str, Statement] = {}

    async def find(self, question: FindInstances) -> InstancesFound:
        given = {name: value for name in _WANTED if (value := getattr(question, name))}
        conditions = [_WANTED[name] for name in given]
        if question.statuses:
            conditions.append(status_in(question.statuses))
            if set(question.statuses).issubset(UNSETTLED_STATUSES):
                conditions.append(UNSETTLED)  # in the words of an index; otherwise all builds would be read
        else:
            conditions.append("status NOT IN ('deleted', 'moved')")
        conditions.append("placed <> ''")  # without a placement there is nothing to show
        where = " AND ".join(conditions)
        async with self._database.read() as tx:
            rows = await self._statement(
                f"SELECT {BUILD} FROM builds WHERE {where} AND id > :after ORDER BY id LIMIT :most"
            )(tx, **given, after=question.after, most=question.limit + 1)
            count = 0
            if question.count:
                counted = await self._statement(f"SELECT count(*) AS several FROM builds WHERE {where}")(
                    tx, **given
                )
                count = counted[0]["several"]
        page = rows[: question.limit]
        return InstancesFound(
            instances=tuple(_instance(build) for build in readable(page)),
            more=len(rows) > len(page),
            count=count,
            last=page[-1]["id"] if page else "",
        )

    def _statement(self, sql: str) -> Statement:
        """Return the prepared statement for this query."""
        return self._statements.setdefault(sql, Statement(sql))


def _instance(build: Build) -> Instance:
    spec, here = build.spec, build.guest_on
    return Instance(
        build=build.id,
        name=spec.name,
        status=build.status,
        cell=build.cell,
        host=here.host,
        root=here.root,
        project=spec.project,
        flavor=spec.flavor.name,
        attempt=build.attempt,
        since=build.started,
        reason=build.doom,
    )
