"""Jobs of an agent (builds and phases of moves) with their ends, and the power supply that they need."""

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
JobKey = tuple[str, object]  # identifies a job of one build
ROUND = 0.025  # seconds between two rounds of ending jobs, per ended job
LONGEST_ROUND = 0.1  # maximum of the same: each round costs a write and wakes other processes


@dataclass(eq=False, slots=True)
class AgentJob:
    """A running build or phase of a move. Only the latest delivery of its order waits for its end."""

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
        """Return whether no delivery of the order waits for the job's end."""
        return self.waiter is None or self.waiter.done()

    def tell(self, how: How) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)

    def make_due(self) -> None:
        self.due = min(self.due, asyncio.get_running_loop().time())


class DueJobs:
    """Ends jobs when they are due, with one timer for all.

    After a round, the next one waits a `ROUND` for each ended job: a busy agent writes and reports many ends
    together, and an idle agent ends each job on time.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, AgentJob]] = []
        self._count = 0  # orders jobs due at the same time
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
        # An event loop may fire early, so jobs due at the planned time count as due.
        now = max(self._rings, asyncio.get_running_loop().time())
        self._alarm, self._rings = None, inf
        told = 0
        while self._due and self._due[0][0] <= now:
            heappop(self._due)[2].tell("done")
            told += 1
        self._next_round = now + min(ROUND * told, LONGEST_ROUND)
        self._set_alarm()


class AgentJobs:
    """All running jobs of an agent by build, and their number by host."""

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
        """Return a future of a job's end; the delivery that waited before is released with `handed over`."""
        job.tell("handed over")
        job.waiter = asyncio.get_running_loop().create_future()
        if job.lost:
            job.tell("lost")
        elif job.due <= asyncio.get_running_loop().time():
            job.tell("done")
        else:
            self._due.watch(job)
        return job.waiter

    def over(self, job: AgentJob) -> bool:
        """Remove a job that has ended; return False if it was destroyed or replaced before."""
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
    """One power supply for all hosts of an agent; it fails after some orders and returns."""

    def __init__(self, agent: str, crashes: CrashPlan, jobs: AgentJobs) -> None:
        self.on = True
        self.failed = 0  # number of failures
        self.changed: Callable[[], None] = lambda: None  # called at each failure and return
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
        """Fail the power supply: all running jobs are lost."""
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
