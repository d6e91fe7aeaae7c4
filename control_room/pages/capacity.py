"""Capacity: how many of a mix fit, with hosts added or taken away in thought, and what is in pieces."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import AnswerRefused, Unavailable, Unroutable
from control_room.core.plan import BadPlan, plan_said
from control_room.core.planning import PlanAnswer, PlannedHost, planned
from control_room.core.what_if_form import words
from control_room.known_hosts import known_hosts
from control_room.pages.frame import Frame, OpenRoom
from control_room.pages.live import at_once, live

STANDS = 3600.0  # seconds that an answer is shown as it was worked out
FRESH = 5.0  # seconds that what was read of all hosts is good for
USUAL = "3 x VCPU:2,MEMORY_MB:4096,DISK_GB:20\n1 x VCPU:8,MEMORY_MB:16384,DISK_GB:80"
_FIELDS = ("mix", "add", "without", "zone", "cell")


@dataclass(frozen=True)
class WorkedOut:
    answer: PlanAnswer | None = None
    problems: Sequence[str] = ()


class CapacityPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._reading = asyncio.Lock()
        self._hosts: Sequence[PlannedHost] = ()
        self._good_until = float("-inf")
        self._plans: dict[str, asyncio.Future[WorkedOut]] = {}  # those under way, by what was asked

    async def page(self, request: Request) -> Response:
        said = _said(request)
        asked = _asked(said)
        found = await at_once(request, self._worked_out(said, asked)) if asked else WorkedOut()
        return self._frame.page(
            request,
            "capacity.html",
            said=said,
            usual=USUAL,
            part=self._part(found, asked),
            asked="" if found else asked,
        )

    async def events(self, request: Request) -> Response:
        """The answer, where the page had to be shown before it was worked out."""

        async def told() -> str:
            said = _said(request)
            return self._part(await self._worked_out(said, _asked(said)), "")

        return live(request, told, STANDS)

    def _part(self, found: WorkedOut | None, asked: str) -> str:
        answer = found.answer if found else None
        return self._frame.part(
            "capacity_part.html",
            asked="" if found else asked,
            problems=found.problems if found else (),
            answer=answer,
            fragments=(answer.then or answer.now) if answer else None,
        )

    async def _worked_out(self, said: Mapping[str, str], asked: str) -> WorkedOut:
        """Once for all who ask the same. It goes on when a page waits no longer: another is open by then."""
        plan = self._plans.get(asked)
        if plan is None:
            plan = self._plans[asked] = asyncio.get_running_loop().create_future()
            plan.add_done_callback(lambda _: self._plans.pop(asked, None))
            self._room.beside.begin(self._work_out(said, plan))
        return await asyncio.shield(plan)

    async def _work_out(self, said: Mapping[str, str], plan: "asyncio.Future[WorkedOut]") -> None:
        try:
            plan.set_result(await self._answer(said))
        except Exception as bug:  # every page that waits for it shows that there is one
            plan.set_exception(bug)
            raise
        finally:
            plan.cancel()  # where it was not settled: the room is closing

    async def _answer(self, said: Mapping[str, str]) -> WorkedOut:
        try:
            return WorkedOut(await self._planned(said))
        except BadPlan as bad:
            return WorkedOut(problems=[f"{str(one)[:1].upper()}{str(one)[1:]}." for one in bad.args])
        except (Unavailable, Unroutable, AnswerRefused) as problem:
            return WorkedOut(problems=[f"Placement does not answer: {problem}."])

    async def _planned(self, said: Mapping[str, str]) -> PlanAnswer:
        plan = plan_said(
            [one for one in said["mix"].splitlines() if one.strip()],
            [one for one in said["add"].splitlines() if one.strip()],
            words(said["without"]),
            said["zone"],
            said["cell"],
        )
        clock = self._room.clock
        async with self._reading:  # one plan at a time: it may be over 10,000 hosts
            if clock.monotonic() >= self._good_until:
                asks = self._room.questions
                self._hosts = await known_hosts(asks.trees, asks.aggregates, asks.cells)
                self._good_until = clock.monotonic() + FRESH
            return await asyncio.to_thread(planned, self._hosts, plan)


def _said(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in _FIELDS}


def _asked(said: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in said.items() if value})
