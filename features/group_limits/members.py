"""The number of members of server groups, which quotas can limit."""

from collections.abc import Collection, Mapping
from functools import cache

from bus.sql.statement import Statement, Transaction, sql
from features.quotas.counts import ProjectCount
from features.quotas.messages import GROUP_MEMBERS
from features.quotas.usage import counted


@cache
def _largest_groups(holder_types: tuple[str, ...]) -> Statement:
    return sql(f"""
    WITH {counted(holder_types)},
    sizes AS (SELECT o.project_id, count(*) AS members FROM counted o JOIN consumers c ON c.id = o.id
    JOIN server_groups g ON g.id = c.group_id
    WHERE EXISTS (SELECT 1 FROM allocations a WHERE a.consumer_id = o.id) GROUP BY o.project_id, g.id)
    SELECT project_id, max(members) FROM sizes GROUP BY project_id
""")


class GroupMembers(ProjectCount):
    """The number of members of the largest server group of a project."""

    resource = GROUP_MEMBERS
    keystone_name = GROUP_MEMBERS

    async def used(
        self, tx: Transaction, projects: Collection[int], holder_types: Collection[str]
    ) -> Mapping[int, int]:
        return dict(await _largest_groups(tuple(holder_types))(tx, [(id_,) for id_ in projects]))
