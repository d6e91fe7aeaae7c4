"""What an agent is at: builds and phases of moves, each with its end, and the power that all of it needs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Literal

from bus.messages import DestroyOrdered
from compute_sim.core.faults import CrashPlan

How = Literal["done", "lost", "destroyed", "overtaken", "handed over"]
JobKey = tuple[str, object]  # of one build: what is done with it
ROUND = 0.025  # seconds from one look at what is over to the next, while things end one upon the other
LONGEST_ROUND = 0.1  # the same, while many do: each look costs a write, and wakes everybody behind us


@dataclass(eq=False, slots=True)
class AgentJob:
    """Something under way. Whoever was handed the order last waits for its end; the others need not."""

    build: str
    attempt: int  # of the guest
    key: JobKey
    root: str
    begun: float
    due: float
    step: int = 0  # of a move
    lost: bool = False  # the power failed
    waiter: asyncio.Future[How] | None = None

    @property
    def told(self) -> bool:
        """Nobody waits for its end any more."""
        return self.waiter is None or self.waiter.done()

    def tell(self, how: How) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)

    def hurry(self) -> None:
        """It takes no longer than until now, for whoever waits for its end next."""
        self.due = min(self.due, asyncio.get_running_loop().time())

    @property
    def is_due(self) -> bool:
        return self.due <= asyncio.get_running_loop().time()


class DueJobs:
    """Tells jobs that they are done when they are due: one alarm for all, and those of a moment together.

    After some were told the next are told a `ROUND` later for each of them, or when they are due: so a busy
    agent writes and says many ends at once, and an idle one each at its time.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, AgentJob]] = []
        self._count = 0  # of two that are due at once, the one that came first
        self._next_round = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._rings = inf

    def watch(self, job: AgentJob) -> None:
        self._count += 1
        heappush(self._due, (job.due, self._count, job))
        self._set_alarm()

    def _set_alarm(self) -> None:
        while self._due and self._due[0][2].told:
            heappop(self._due)
        when = max(self._due[0][0], self._next_round) if self._due else inf
        if when < self._rings:
            if self._alarm is not None:
                self._alarm.cancel()
            self._rings = when
            self._alarm = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        """An event loop may ring a little early: what was due when it was to ring is due now."""
        now = max(self._rings, asyncio.get_running_loop().time())
        self._alarm, self._rings = None, inf
        told = 0
        while self._due and self._due[0][0] <= now:
            heappop(self._due)[2].tell("done")
            told += 1
        self._next_round = now + min(ROUND * told, LONGEST_ROUND)
        self._set_alarm()


class AgentJobs:
    """All that is under way, by build; and on how many things each host is at work."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()  # by root
        self._of: dict[str, dict[JobKey, AgentJob]] = {}
        self._due = DueJobs()

    def __iter__(self) -> Iterator[AgentJob]:
        return (job for jobs in self._of.values() for job in jobs.values())

    def begin(self, job: AgentJob) -> AgentJob:
        self._of.setdefault(job.build, {})[job.key] = job
        self.on[job.root] += 1
        return job

    def get(self, build: str, key: JobKey) -> AgentJob | None:
        return self._of.get(build, {}).get(key)

    def end(self, job: AgentJob) -> asyncio.Future[How]:
        """How it ends; whoever waited for that before has handed it over."""
        job.tell("handed over")
        job.waiter = asyncio.get_running_loop().create_future()
        if job.lost:
            job.tell("lost")
        elif job.is_due:
            job.tell("done")
        else:
            self._due.watch(job)
        return job.waiter

    def over(self, job: AgentJob) -> bool:
        """False: it was over already, destroyed or overtaken."""
        if self.get(job.build, job.key) is not job:
            return False
        jobs = self._of[job.build]
        del jobs[job.key]
        if not jobs:
            del self._of[job.build]
        self.on[job.root] -= 1
        return True

    def destroy(self, order: DestroyOrdered) -> None:
        for job in list(self._of.get(order.build, {}).values()):
            if order.above < job.attempt <= order.attempt:
                self.over(job)
                job.tell("destroyed")


class PowerSupply:
    """One for all hosts of an agent. It fails after so many orders, and comes back."""

    def __init__(self, agent: str, crashes: CrashPlan, jobs: AgentJobs) -> None:
        self.on = True
        self.failed = 0  # how often it has
        self.changed: Callable[[], None] = lambda: None  # told when it failed, and when it is back
        self._agent, self._crashes, self._jobs = agent, crashes, jobs
        self._left = crashes.next_after(agent, 0)
        self._back = asyncio.Event()
        self._back.set()

    async def there(self) -> None:
        await self._back.wait()

    def count_down(self) -> None:
        if self._left:
            self._left -= 1
            if not self._left:
                self.fail()

    def fail(self) -> None:
        """Whatever is under way is lost."""
        self.on = False
        self._back.clear()
        for job in self._jobs:
            job.lost = True
            job.tell("lost")
        self.changed()
        asyncio.get_running_loop().call_later(self._crashes.away, self._come_back)

    def _come_back(self) -> None:
        self.failed += 1
        self._left = self._crashes.next_after(self._agent, self.failed)
        self.on = True
        self.changed()
        self._back.set()
