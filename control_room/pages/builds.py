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
from control_room.core.decisions import DecisionShown, shown
from control_room.core.timeline import AttemptShown, timeline
from control_room.core.what_if_form import address_of
from control_room.core.windows import latest
from control_room.page_refresh import Pace
from control_room.pages.frame import Frame, OpenRoom, PageRefused
from control_room.pages.ids import uuid_in
from control_room.pages.live import live
from control_room.queries import Reply, heard

LISTED = 100
ROWS_KEPT = 400  # rows for the list of all builds, and for the list of failed ones
SECONDS = 5.0  # seconds after which the list is drawn again, because it shows ages


@dataclass(frozen=True, kw_only=True)
class BuildShown:
    stands: BuildStands
    attempts: Sequence[AttemptShown]
    decision: DecisionShown
    again: str  # where it goes when decided again; empty: that was not asked
    same: bool


@dataclass(frozen=True)
class AllKnown:
    stands: list[BuildStands]
    moves: list[MoveStands]
    decided: DecisionFound
    silent: list[str]


class BuildPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        # failed only → number of builds, time, and the drawn list
        self._lists: dict[bool, tuple[int, float, str]] = {}
        self._pace = Pace()
        # Except for its age, an ended build never changes.
        self._row = lru_cache(ROWS_KEPT)(lambda end: frame.part("builds_row.html", end=end))

    async def list_all(self, request: Request) -> Response:
        wanted = request.query_params.get("id", "").strip()
        if wanted:
            id_ = uuid_in(wanted)
            if not id_:
                raise PageRefused(
                    400, "That is no id", f"{wanted[:60]!r} is not the uuid of a build or request."
                )
            return RedirectResponse(f"/builds/{id_}", status_code=303)
        failed = request.query_params.get("failed") == "1"
        return self._frame.page(request, "builds.html", failed=failed, part=await self._ended(failed))

    async def events(self, request: Request) -> Response:
        failed = request.query_params.get("failed") == "1"
        return live(request, lambda: self._ended(failed), SECONDS, self._room.hearing.stirring, self._pace)

    async def _ended(self, failed: bool) -> str:
        """Return the list of ends, rendered once for all readers."""
        hearing, at = self._room.hearing, self._room.clock.monotonic()
        heard_by, made, part = self._lists.get(failed, (-1, 0.0, ""))
        if heard_by == hearing.stirring.count and at - made < SECONDS * 0.9:
            return part
        with self._pace.making():
            recent = hearing.lately.recent
            part = self._frame.part(
                "builds_part.html",
                failed=failed,
                rows=[(end, self._row(end)) for end in latest(recent, failed, LISTED)],
                known=len(recent),
                now=self._room.clock.now(),
            )
        self._lists[failed] = hearing.stirring.count, at, part
        return part

    async def page(self, request: Request) -> Response:
        id_ = uuid_in(request.path_params["build"])
        if not id_:
            raise PageRefused(404, "There is no such build", "That is not the uuid of a build.")
        known = await self._known(id_)
        if not known.stands and not known.moves and not known.decided.known:
            unheard = f" ({', '.join(known.silent)} did not answer.)" if known.silent else ""
            raise PageRefused(404, "Nobody knows it", f"No build, request or move has this id.{unheard}")
        then = request.query_params.get("then", "")
        today = await self._today(known) if then == "now" else None
        return self._frame.page(
            request,
            "build.html",
            id=id_,
            builds=[self._shown(build, then == "again") for build in known.stands],
            moves=known.moves,
            decided=known.decided,
            decision=shown(known.decided.decision, self._room.means.scores),
            silent=known.silent,
            then=then,
            today=today,
            today_decision=self._decision_of(today),
            what_if=self._what_if(known),
            only_failed=request.query_params.get("attempts") == "failed",
            now=self._room.clock.now(),
        )

    def _shown(self, build: BuildStands, again: bool) -> BuildShown:
        means, placed = self._room.means, build.placed
        record, host = placed.decision.record, None
        if again and record is not None:
            host = means.replay(build.build, record)
        where = host.host if host else "nowhere" if record else "unknown: it is not recorded"
        return BuildShown(
            stands=build,
            attempts=timeline(build.attempts),
            decision=shown(placed.decision, means.scores, placed.chosen.root),
            again=where if again else "",
            same=host is not None and host.root == placed.chosen.root,
        )

    async def _known(self, id_: str) -> AllKnown:
        """Ask all cells and the schedulers in parallel."""
        ask, looking = self._room.questions, self._room.looking
        cells = looking.cell_names(await looking.seen())
        questions = [heard("the scheduler", ask.decision, FindDecision(id=id_))]
        asked: list[Any] = [*questions]
        for cell in cells:
            who = f"cell {cell}"
            asked.append(heard(who, ask.builds, FindBuilds(cell=cell, builds=(id_,))))
            asked.append(heard(who, ask.moves, FindMoves(cell=cell, moves=(id_,))))
            asked.append(heard(who, ask.moves, FindMoves(cell=cell, builds=(id_,))))
        replies: list[Reply[Any]] = await asyncio.gather(*asked)
        stands, moves = list[BuildStands](), dict[str, MoveStands]()
        for reply in replies[1:]:
            stands += getattr(reply.answer, "builds", ())
            moves.update((one.move, one) for one in getattr(reply.answer, "moves", ()))
        silent = dict.fromkeys(reply.who for reply in replies if reply.problem)
        decided = replies[0].answer or DecisionFound()
        return AllKnown(stands, sorted(moves.values(), key=lambda one: one.since), decided, list(silent))

    def _request(self, known: AllKnown) -> BuildRequested | None:
        """Return the request, or None if it is not recorded as one request."""
        if known.decided.move is not None or not (known.decided.request or known.stands):
            return None
        return known.decided.request or self._room.means.requested(known.stands[0])

    def _what_if(self, known: AllKnown) -> str:
        """Where the same request stands in a form, to be changed; empty: nowhere."""
        request = self._request(known)
        return address_of(request) if request is not None else ""

    async def _today(self, known: AllKnown) -> Reply[Any] | None:
        request = self._request(known)
        if request is None:
            return None
        return await heard("the scheduler", self._room.questions.what_if, WhatIf(request=request, room=True))

    def _decision_of(self, today: Reply[Any] | None) -> DecisionShown | None:
        if today is None or today.answer is None:
            return None
        chosen = today.answer.placed[0].root if today.answer.placed else ""
        return shown(today.answer.decision, self._room.means.scores, chosen)
