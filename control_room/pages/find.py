"""The search of all pages: leads from an id or a name to the page of its host, build or other object."""

import asyncio
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.resources import FindProviders
from control_room.kit.frame import FoundPage, PageGroup
from control_room.kit.page_requests import uuid_in
from control_room.kit.queries import query

LONGEST = 200  # characters of a text that is searched


class FindPages(PageGroup):
    """Searches what an operator entered among hosts, builds, and what features find."""

    async def page(self, request: Request) -> Response:
        """Redirect to the only page that was found; else list the found pages."""
        text = request.query_params.get("q", "").strip()
        if text and text.isprintable() and len(text) <= LONGEST:
            (hosts, problem), added = await asyncio.gather(self._hosts(text), self._renderer.find(text))
            found = [*hosts, *added]
        else:
            found, problem = [], ""
        if not found and (id_ := uuid_in(text)) and not problem:
            return RedirectResponse(f"/builds/{id_}", status_code=303)
        if len(found) == 1 and not problem:
            return RedirectResponse(found[0].address, status_code=303)
        return self._renderer.page(request, "find.html", text=text, found=found, problem=problem)

    async def _hosts(self, text: str) -> tuple[list[FoundPage], str]:
        """Return the hosts with this id or name, and why placement did not answer, or ""."""
        id_ = uuid_in(text)
        find = FindProviders(ids=(id_,) if id_ else (), host="" if id_ else text, parts=("owner",))
        reply = await query("placement", self._context.queries.providers, find)
        if reply.answer is None:
            return [], reply.problem
        return [
            FoundPage("host", each.host or each.name, f"/hosts/{quote(each.root)}", detail=each.cell)
            for each in reply.answer.providers
        ], ""
