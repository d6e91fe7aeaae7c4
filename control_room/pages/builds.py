"""Pages of builds: recently ended ones, and all records of one build."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bus.messages import BuildRequested
from bus.moves import FindMoves, MoveStands
from bus.queries import BuildStands, DecisionFound, FindBuilds, FindDecision, WhatIf
from control_room.core.builds import AttemptShown, DecisionShown, shown, timeline
from control_room.core.what_if_form import address_of
from control_room.core.windows import latest
from control_room.pages.frame import PageContext, PageGroup, PageRefused, Renderer, uuid_in
from control_room.pages.page_updates import PageUpdates
from control_room.pages.what_if import shown_answer
from control_room.queries import Reply, query
from control_room.shared_data import SharedData

LISTED = 100
ROWS_KEPT = 400  # rendered rows
SECONDS = 5.0  # seconds after which the list is rendered again, because it shows ages


@dataclass(frozen=True, kw_only=True)
class BuildShown:
    stands: BuildStands
    attempts: Sequence[AttemptShown]
    decision: DecisionShown
    again: str  # the host of the repeated decision; empty: it was not repeated
    same: bool


@dataclass(frozen=True)
class KnownRecords:
    builds: list[BuildStands]
    moves: list[MoveStands]
    decided: DecisionFound
    silent: list[str]


class BuildPages(PageGroup):
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
        records = await self._records(id_)
        if not records.builds and not records.moves and not records.decided.known:
            silent = f" ({', '.join(records.silent)} did not answer.)" if records.silent else ""
            raise PageRefused(404, "Unknown id", f"No build, request or move has this id.{silent}")
        then = request.query_params.get("then", "")
        requested, scores = self._request(records), self._context.operations.scores
        today, today_decision = await self._today(requested) if then == "now" else (None, None)
        return self._renderer.page(
            request,
            "build.html",
            id=id_,
            builds=[self._shown(build, then == "again") for build in records.builds],
            moves=records.moves,
            decided=records.decided,
            decision=shown(records.decided.decision, scores),
            silent=records.silent,
            then=then,
            today=today,
            today_decision=today_decision,
            what_if=address_of(requested) if requested is not None else "",
            only_failed=request.query_params.get("attempts") == "failed",
            now=self._context.clock.now(),
        )

    def _shown(self, build: BuildStands, again: bool) -> BuildShown:
        operations, placed = self._context.operations, build.placed
        record, host = placed.decision.record, None
        if again and record is not None:
            host = operations.replay(build.build, record)
        where = host.host if host else "nowhere" if record else "unknown: it is not recorded"
        return BuildShown(
            stands=build,
            attempts=timeline(build.attempts),
            decision=shown(placed.decision, operations.scores, placed.chosen.root),
            again=where if again else "",
            same=host is not None and host.root == placed.chosen.root,
        )

    async def _records(self, id_: str) -> KnownRecords:
        ask = self._context.queries
        pending: list[Any] = [query("the scheduler", ask.decision, FindDecision(id=id_))]
        for cell in await self._context.status.cells():
            source = f"cell {cell}"
            pending.append(query(source, ask.builds, FindBuilds(cell=cell, builds=(id_,))))
            pending.append(query(source, ask.moves, FindMoves(cell=cell, moves=(id_,))))
            pending.append(query(source, ask.moves, FindMoves(cell=cell, builds=(id_,))))
        replies: list[Reply[Any]] = await asyncio.gather(*pending)
        builds, moves = list[BuildStands](), dict[str, MoveStands]()
        for reply in replies[1:]:
            builds += getattr(reply.answer, "builds", ())
            moves.update((move.move, move) for move in getattr(reply.answer, "moves", ()))
        silent = dict.fromkeys(reply.source for reply in replies if reply.problem)
        decided = replies[0].answer or DecisionFound()
        return KnownRecords(
            builds, sorted(moves.values(), key=lambda move: move.since), decided, list(silent)
        )

    def _request(self, records: KnownRecords) -> BuildRequested | None:
        if records.decided.move is not None or not (records.decided.request or records.builds):
            return None  # it is not recorded as one request
        return records.decided.request or self._context.operations.requested(records.builds[0])

    async def _today(self, request: BuildRequested | None) -> tuple[Reply[Any] | None, DecisionShown | None]:
        if request is None:
            return None, None
        question = WhatIf(request=request, room=True)
        reply = await query("the scheduler", self._context.queries.what_if, question)
        if reply.answer is None:
            return reply, None
        return reply, shown_answer(reply.answer, self._context.operations.scores)
