"""The page of instances of all cells, by project, host, cell and status."""

import asyncio
from functools import partial
from typing import get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bus.parts import converted, problem_of
from bus.queries import FindInstances, InstanceStatus
from control_room.core.instances import merged
from control_room.kit import words
from control_room.kit.frame import PageGroup, PageRefused
from control_room.kit.page_requests import parameter
from control_room.kit.queries import query

INSTANCES = 100  # on a page


class InstancePages(PageGroup):
    """Lists instances, a page after the other."""

    async def page(self, request: Request) -> Response:
        asked = {
            name: parameter(request, name) for name in ("project", "host", "cell", "status", "name", "after")
        }
        cells = await self._context.status.cells()
        wanted = [cell for cell in cells if asked["cell"] in ("", cell)]
        queries = [self._query(asked, cell) for cell in wanted]
        ask = self._context.queries.instances
        replies = await asyncio.gather(*(query(f"cell {each.cell}", ask, each) for each in queries))
        return self._renderer.page(
            request,
            "instances.html",
            found=merged(replies, INSTANCES),
            asked=asked,
            cells=cells,
            statuses=get_args(InstanceStatus),
            address=partial(words.address, "/instances"),
        )

    def _query(self, asked: dict[str, str], cell: str) -> FindInstances:
        """Return the query to a cell; raise PageRefused if a parameter is invalid."""
        fields = {name: asked[name] for name in ("project", "host", "name", "after")}
        statuses = [asked["status"]] if asked["status"] else []
        more = {"cell": cell, "statuses": statuses, "limit": INSTANCES, "count": True}
        try:
            return converted(FindInstances, {**fields, **more})
        except msgspec.ValidationError as problem:
            text = problem_of(problem)
            raise PageRefused(400, "These instances cannot be searched", f"{text}.") from None
