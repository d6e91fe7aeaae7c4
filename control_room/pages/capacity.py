"""Capacity: how many of a mix fit, with hosts added or taken away in thought, and what is in pieces."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import AnswerRefused, Unavailable, Unroutable
from control_room.core.plan import BadPlan, plan_said
from control_room.core.planning import PlanAnswer, PlannedHost, planned
from control_room.core.what_if_form import words
from control_room.known_hosts import known_hosts
from control_room.pages.frame import Frame, OpenRoom

FRESH = 5.0  # seconds that what was read of all hosts is good for
USUAL = "3 x VCPU:2,MEMORY_MB:4096,DISK_GB:20\n1 x VCPU:8,MEMORY_MB:16384,DISK_GB:80"
_FIELDS = ("mix", "add", "without", "zone", "cell")


class CapacityPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._reading = asyncio.Lock()
        self._hosts: Sequence[PlannedHost] = ()
        self._good_until = float("-inf")

    async def page(self, request: Request) -> Response:
        said = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        answer: PlanAnswer | None = None
        problems: Sequence[str] = ()
        if any(said.values()):
            try:
                answer = await self._planned(said)
            except BadPlan as bad:
                problems = [f"{str(one)[:1].upper()}{str(one)[1:]}." for one in bad.args]
            except (Unavailable, Unroutable, AnswerRefused) as problem:
                problems = [f"Placement does not answer: {problem}."]
        return self._frame.page(
            request,
            "capacity.html",
            said=said,
            usual=USUAL,
            problems=problems,
            answer=answer,
            fragments=(answer.then or answer.now) if answer else None,
        )

    async def _planned(self, said: dict[str, str]) -> PlanAnswer:
        plan = plan_said(
            [one for one in said["mix"].splitlines() if one.strip()],
            [one for one in said["add"].splitlines() if one.strip()],
            words(said["without"]),
            said["zone"],
            said["cell"],
        )
        clock, asks = self._room.clock, self._room.questions
        async with self._reading:  # one plan at a time: it may be over 10,000 hosts
            if clock.monotonic() >= self._good_until:
                self._hosts = await known_hosts(asks.trees, asks.aggregates, asks.cells)
                self._good_until = clock.monotonic() + FRESH
            return await asyncio.to_thread(planned, self._hosts, plan)
