"""Lists the instances of a cell."""

from bus.queries import FindInstances, Instance, InstancesFound
from bus.sql.statement import Transaction, sql
from cell_conductor.core.build import Build
from cell_conductor.core.step import guest_on
from cell_conductor.store import BUILD, BUILDS, UNSETTLED, UNSETTLED_STATUSES, StoredForm, status_in

_WANTED = {
    "project": "project = :project",
    "host": "(host = :host OR root = :host)",
    "name": "name = :name AND name <> ''",
    "since": "updated_at >= :since",
}


async def instances_page(tx: Transaction, question: FindInstances, form: StoredForm) -> InstancesFound:
    """Return a page of the instances that match all given conditions."""
    given = {name: value for name in _WANTED if (value := getattr(question, name))}
    conditions = [_WANTED[name] for name in given]
    if question.statuses:
        conditions.append(status_in(question.statuses))
        if set(question.statuses).issubset(UNSETTLED_STATUSES):
            conditions.append(UNSETTLED)  # the index's condition, literally, else all builds are read
    else:
        conditions.append(f"NOT {status_in(('deleted', *form.statuses.ended))}")
    conditions.append("placed <> ''")  # builds without a placement have no host or flavor to show
    where = " AND ".join(conditions)
    listed = sql(f"""
        SELECT {BUILD} FROM {BUILDS} WHERE {where} AND id > :after AND build > :after
        ORDER BY build LIMIT :most
    """)  # PostgreSQL does not infer the condition of one id column from the other
    counted = sql(f"SELECT count(*) AS several FROM {BUILDS} WHERE {where}")
    rows = await listed(tx, **given, after=question.after, most=question.limit + 1)
    page = rows[: question.limit]
    return InstancesFound(
        instances=tuple(
            _instance(build, form)
            for build in form.readable(page)
            if question.reply_to in ("", build.as_placed.reply_to)
        ),
        more=len(rows) > len(page),
        count=(await counted(tx, **given))[0]["several"] if question.count else 0,
        last=page[-1]["id"] if page else "",
    )


def _instance(build: Build, form: StoredForm) -> Instance:
    spec, guest = build.spec, guest_on(build, form.courses)
    return Instance(
        build=build.id,
        name=spec.name,
        status=build.shown,
        cell=build.cell,
        host=guest.host,
        root=guest.root,
        project=spec.project,
        flavor=spec.flavor.name,
        attempt=build.attempt,
        since=build.started,
        reason=build.doom,
        parts=build.as_placed.parts,
        generation=build.generation,
    )
