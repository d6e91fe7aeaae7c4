"""Capacity: how many of a mix fit, with hosts added or taken away in thought, and what is in pieces."""

import asyncio
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from control_room.core.inventories import PlannedHost
from control_room.core.plan import BadPlan, plan_said
from control_room.core.planning import PlanAnswer, planned
from control_room.core.what_if_form import words
from control_room.known_hosts import known_hosts
from control_room.pages.frame import Frame, OpenRoom, address_of, session_of
from control_room.pages.live import at_once, live
from control_room.queries import NO_ANSWER

STANDS = 3600.0  # seconds that an answer is shown as it was worked out
FRESH = 5.0  # seconds that what was read of all hosts is good for
GRACE = 5.0  # seconds between a page that is shown without its answer and the stream that asks for it
LONGEST = 30.0  # seconds that a plan may take
USUAL = "3 x VCPU:2,MEMORY_MB:4096,DISK_GB:20\n1 x VCPU:8,MEMORY_MB:16384,DISK_GB:80"
_FIELDS = ("mix", "add", "without", "zone", "cell")


@dataclass(frozen=True)
class WorkedOut:
    answer: PlanAnswer | None = None
    problems: Sequence[str] = ()


@dataclass(eq=False)
class _Job:
    """A plan that is being worked out, and how many pages and streams wait for it."""

    found: asyncio.Future[WorkedOut]
    task: asyncio.Task[None]
    readers: int = 0


class CapacityPages:
    """One plan of a reader is worked out at a time, and one of all readers: it may be over 10,000 hosts."""

    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._planning = asyncio.Lock()
        self._of_reader: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._hosts: Sequence[PlannedHost] = ()
        self._good_until = float("-inf")
        self._jobs: dict[str, _Job] = {}  # by their query

    async def page(self, request: Request) -> Response:
        said = _said(request)
        asked = _asked(said)
        found = await at_once(request, self._worked_out(request, said)) if asked else WorkedOut()
        return self._frame.page(
            request,
            "capacity.html",
            said=said,
            usual=USUAL,
            part=self._part(found, asked),
            asked="" if found else asked,
        )

    async def events(self, request: Request) -> Response:
        """Send the answer that the page did not wait for."""

        async def told() -> str:
            return self._part(await self._worked_out(request, _said(request)), "")

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

    async def _worked_out(self, request: Request, said: Mapping[str, str]) -> WorkedOut:
        """Return the answer. All who ask the same share one job, which ends once all of them have left."""
        asked = _asked(said)
        job = self._jobs.get(asked)
        if job is None or job.found.done():
            job = self._begin(request, said, asked)
        job.readers += 1
        try:
            return await asyncio.shield(job.found)
        finally:
            job.readers -= 1
            if not job.readers:
                asyncio.get_running_loop().call_later(GRACE, self._end_unread, job)

    def _begin(self, request: Request, said: Mapping[str, str], asked: str) -> _Job:
        found: asyncio.Future[WorkedOut] = asyncio.get_running_loop().create_future()
        reader = session_of(request).visitor or address_of(request.scope)
        turn = self._of_reader.setdefault(reader, asyncio.Lock())
        job = _Job(found, self._room.beside.begin(self._work_out(said, found, turn)))
        self._jobs[asked] = job
        found.add_done_callback(lambda _: self._forget(asked, job))
        return job

    def _forget(self, asked: str, job: _Job) -> None:
        if self._jobs.get(asked) is job:
            del self._jobs[asked]

    def _end_unread(self, job: _Job) -> None:
        if not job.readers:
            job.task.cancel()
            job.found.cancel()

    async def _work_out(
        self, said: Mapping[str, str], found: asyncio.Future[WorkedOut], turn: asyncio.Lock
    ) -> None:
        try:
            async with turn:
                found.set_result(await self._answer(said))
        except Exception as bug:  # each page that waits for it gets the error
            found.set_exception(bug)
            raise
        finally:
            found.cancel()  # without effect on a result

    async def _answer(self, said: Mapping[str, str]) -> WorkedOut:
        try:
            return WorkedOut(await self._planned(said))
        except BadPlan as bad:
            return WorkedOut(problems=[f"{str(arg)[:1].upper()}{str(arg)[1:]}." for arg in bad.args])
        except NO_ANSWER as problem:
            return WorkedOut(problems=[f"Placement does not answer: {problem}."])

    async def _planned(self, said: Mapping[str, str]) -> PlanAnswer:
        plan = plan_said(
            [splitline for splitline in said["mix"].splitlines() if splitline.strip()],
            [splitline for splitline in said["add"].splitlines() if splitline.strip()],
            words(said["without"]),
            said["zone"],
            said["cell"],
        )
        async with self._planning:
            hosts = await self._known_hosts()
            stop = threading.Event()
            try:
                async with asyncio.timeout(LONGEST):
                    return await asyncio.to_thread(planned, hosts, plan, stop.is_set)
            except TimeoutError:
                raise BadPlan(f"this plan takes longer than {LONGEST:g} s: plan with less") from None
            finally:
                stop.set()  # or the thread continues after a cancellation

    async def _known_hosts(self) -> Sequence[PlannedHost]:
        clock, asks = self._room.clock, self._room.questions
        if clock.monotonic() >= self._good_until:
            self._hosts = await known_hosts(asks.trees, asks.aggregates, asks.cells)
            self._good_until = clock.monotonic() + FRESH
        return self._hosts


def _said(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in _FIELDS}


def _asked(said: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in said.items() if value})
