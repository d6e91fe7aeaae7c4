"""SQL for quotas: limits of projects, and what the instances of a project use.

A claim of a project with a limit locks the project's row before it reads what the project uses, so two claims
of one project are never checked against the same usage. The usage is summed from the allocations: no counter
can differ from them.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from bus.sql.statement import Statement, Transaction, sql
from features.quotas.budgets import ProjectUsage, QuotaLimits, largest
from features.quotas.messages import INSTANCES
from placement_worker.extension import Book


def counted(holder_types: Collection[str]) -> str:
    """Return the SQL, for a WITH clause, of the consumers that quotas count: all but those of these types."""
    return f"""
        counted AS (SELECT c.project_id, c.id, c.uuid, c.keeps_for FROM {{n: id int}}
        JOIN consumers c ON c.project_id = n.id LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
        WHERE COALESCE(k.name, '') NOT IN ({", ".join(map(repr, holder_types))}))
    """


@cache
def _used(holder_types: tuple[str, ...]) -> Statement:
    # Usage of projects. For an instance that a client moves, one row for each tree of each of its consumers.
    return sql(f"""
    WITH {counted(holder_types)},
    moved AS (SELECT DISTINCT m.keeps_for AS instance FROM counted m WHERE m.keeps_for IS NOT NULL),
    held AS (SELECT o.project_id, o.id, o.uuid, m.instance, a.resource_provider_id, a.resource_class_id,
    a.used FROM counted o LEFT JOIN moved m ON m.instance = COALESCE(o.keeps_for, o.uuid)
    JOIN allocations a ON a.consumer_id = o.id)
    SELECT project_id, resource_class_id, sum(used) AS used, CAST(NULL AS text) AS instance,
    CAST(NULL AS text) AS consumer, CAST(NULL AS integer) AS tree
    FROM held WHERE instance IS NULL GROUP BY project_id, resource_class_id
    UNION ALL SELECT project_id, NULL, count(DISTINCT id), NULL, NULL, NULL
    FROM held WHERE instance IS NULL GROUP BY project_id
    UNION ALL SELECT h.project_id, h.resource_class_id, sum(h.used), h.instance, h.uuid, p.root_provider_id
    FROM held h JOIN resource_providers p ON p.id = h.resource_provider_id WHERE h.instance IS NOT NULL
    GROUP BY h.project_id, h.resource_class_id, h.instance, h.uuid, p.root_provider_id
""")


MARK_MOVE = sql("""
    UPDATE consumers SET keeps_for = n.instance FROM {n: id int, instance str} WHERE consumers.id = n.id
""")
_NUMBERS = sql(
    "SELECT p.external_id, p.id FROM {n: project str} JOIN projects p ON p.external_id = n.project"
)
_PROJECTS = sql("SELECT p.id, p.external_id FROM {n: id int} JOIN projects p ON p.id = n.id")
_PAGE = sql("""
    SELECT f.project FROM (SELECT DISTINCT q.project FROM quotas q WHERE q.project <> ''
    UNION SELECT p.external_id FROM projects p WHERE CAST(:used AS boolean)
    AND EXISTS (SELECT 1 FROM consumers c WHERE c.project_id = p.id)) f
    WHERE f.project > :after ORDER BY f.project LIMIT :most
""")


async def usage(
    tx: Transaction, book: Book, projects: Collection[int], holder_types: Collection[str]
) -> dict[int, ProjectUsage]:
    """Return what the instances of each project, given by its database id, hold by resource class, with the
    number of instances. Consumers of the types `holder_types` do not count.
    """
    usages = {id_: ProjectUsage() for id_ in projects}
    rows = await _used(tuple(holder_types))(tx, [(id_,) for id_ in projects])
    names = await book.class_names(tx, {row[1] for row in rows if row[1] is not None})
    moved: dict[tuple[int, str], dict[str, Counter[str]]] = {}
    for project, class_id, amount, instance, consumer, _ in rows:
        if instance is None:
            usages[project].used[INSTANCES if class_id is None else names[class_id]] = int(amount)
        else:
            parts = moved.setdefault((project, instance), {})
            parts.setdefault(consumer, Counter({INSTANCES: 1}))
            parts[consumer] |= Counter({names[class_id]: int(amount)})
    for (project, instance), found in moved.items():
        usages[project].parts[instance] = found
        usages[project].used += largest(found.values())
    return usages


async def numbers(tx: Transaction, projects: Collection[str]) -> dict[str, int]:
    """Return a mapping of the given projects to their database ids; a missing project is left out."""
    return dict(await _NUMBERS(tx, [(name,) for name in projects]))


async def released(tx: Transaction, limits: QuotaLimits, projects: Collection[int]) -> tuple[str, ...]:
    """Return the ids of those of the given projects (database ids) that have a quota: requests that the quota
    refused may fit now.
    """
    if not limits or not projects:
        return ()
    names: Mapping[int, str] = dict(await _PROJECTS(tx, [(id_,) for id_ in projects]))
    return tuple(limits.limited(names.values()))


async def page(tx: Transaction, after: str, most: int, *, used: bool) -> Sequence[str]:
    """Return a page of projects, sorted by id: projects with limits and, with `used`, also projects with
    consumers.
    """
    return [project for (project,) in await _PAGE(tx, after=after, most=most, used=used)]
