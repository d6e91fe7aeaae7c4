"""The numbers of a project that quotas can limit besides amounts of resource classes."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from bus.sql.statement import Transaction


class ProjectCount:
    """A number of each project that a quota can limit. A feature offers it, and enforces the limit."""

    resource: ClassVar[str]  # name in quotas
    keystone_name: ClassVar[str]  # name in Keystone's unified limits

    async def used(
        self, tx: Transaction, projects: Collection[int], holder_types: Collection[str]
    ) -> Mapping[int, int]:
        """Return the number of each given project (database ids); a project without may be
        missing. Consumers of the types `holder_types` do not count."""
        raise NotImplementedError
