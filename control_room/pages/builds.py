"""Pages about ended builds, and about all records of one build."""

import asyncio
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.queries import BuildStands, DecisionFound, FindBuilds, FindDecision
from control_room.core.builds import latest, timeline
from control_room.kit.build_records import BuildRecords
from control_room.kit.decisions import decision_shown
from control_room.kit.frame import PageContext, PageGroup, PageRefused, Renderer
from control_room.kit.page_requests import uuid_in
from control_room.kit.queries import query
from control_room.kit.refresh import PageUpdates
from control_room.kit.shared_data import SharedData

LISTED = 100


ROWS_KEPT = 400  # rendered rows


SECONDS = 5.0  # seconds after which the list is rendered again, because it shows ages


class BuildPages(PageGroup):
    """Lists builds that ended recently, and shows one build with its attempts and decision."""

    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        changes = context.events.changes
        self._updates = PageUpdates(SECONDS, changes)
        self._lists = SharedData(context.tasks, self._list, changes=changes, seconds=SECONDS * 0.9)
        # Except for its age, an ended build never changes.
        self._row = lru_cache(ROWS_KEPT)(lambda end: renderer.part("builds_row.html", end=end))

    async def list_all(self, request: Request) -> Response:
        wanted = request.query_params.get("id", "").strip()
        if wanted:
            id_ = uuid_in(wanted)
            if not id_:
                text = f"{wanted[:60]!r} is not the uuid of a build or request."
                raise PageRefused(400, "That is not an id", text)
            return RedirectResponse(f"/builds/{id_}", status_code=303)
        failed = request.query_params.get("failed") == "1"
        return self._renderer.page(request, "builds.html", failed=failed, part=await self._lists.get(failed))

    async def events(self, request: Request) -> Response:
        failed = request.query_params.get("failed") == "1"
        return self._updates.stream(request, lambda: self._lists.get(failed))

    async def _list(self, failed: bool) -> str:
        with self._updates.interval.rendering():
            recent = self._context.events.history.recent
            return self._renderer.part(
                "builds_part.html",
                failed=failed,
                rows=[(end, self._row(end)) for end in latest(recent, failed, LISTED)],
                known=len(recent),
                now=self._context.clock.now(),
            )

    async def page(self, request: Request) -> Response:
        id_ = uuid_in(request.path_params["build"])
        if not id_:
            raise PageRefused(404, "There is no such build", "That is not the uuid of a build.")
        records, further = await asyncio.gather(self._records(id_), self._renderer.records(id_))
        silent = list(dict.fromkeys([*records.silent, *further.silent]))
        if not records.builds and not records.decided.known and not further.text:
            no_answer = f" ({', '.join(silent)} did not answer.)" if silent else ""
            raise PageRefused(404, "Unknown id", f"No build, request or move has this id.{no_answer}")
        of_decision, sections = await asyncio.gather(
            self._renderer.sections("decision", request, records),
            self._renderer.sections("build", request, records),
        )
        then, operations = request.query_params.get("then", ""), self._context.operations
        return self._renderer.page(
            request,
            "build.html",
            id=id_,
            builds=[self._shown(build, then == "again") for build in records.builds],
            decided=records.decided,
            decision=decision_shown(records.decided.decision, operations.scores),
            silent=silent,
            of_decision=of_decision,
            sections=sections,
            further=further.text,
            then=then,
            only_failed=request.query_params.get("attempts") == "failed",
            now=self._context.clock.now(),
        )

    def _shown(self, build: BuildStands, again: bool) -> dict[str, Any]:
        operations, placed = self._context.operations, build.placed
        record, host = placed.decision.record, None
        if again and record is not None:
            host = operations.replay(build.build, record)
        where = host.host if host else "nowhere" if record else "unknown: it is not recorded"
        return {
            "stands": build,
            "attempts": timeline(build.attempts),
            "decision": decision_shown(placed.decision, operations.scores, placed.chosen.root),
            "again": where if again else "",  # the host of the repeated decision
            "same": host is not None and host.root == placed.chosen.root,
        }

    async def _records(self, id_: str) -> BuildRecords:
        ask = self._context.queries
        pending: list[Any] = [query("the scheduler", ask.decision, FindDecision(id=id_))]
        for cell in await self._context.status.cells():
            source = f"cell {cell}"
            pending.append(query(source, ask.builds, FindBuilds(cell=cell, builds=(id_,))))
        replies = await asyncio.gather(*pending)
        builds = [build for reply in replies[1:] if reply.answer for build in reply.answer.builds]
        silent = [reply.source for reply in replies if reply.problem]
        return BuildRecords(id_, builds, replies[0].answer or DecisionFound(), silent)
