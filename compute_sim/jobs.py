"""What an agent is at: builds and phases of moves, each with its end, and the power that all of it needs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from bus.messages import DestroyOrdered
from compute_sim.core.faults import CrashPlan

How = Literal["done", "lost", "destroyed", "overtaken", "handed over"]
JobKey = tuple[str, object]  # of one build: what is done with it


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

    def tell(self, how: How) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)

    def hurry(self) -> None:
        """It takes no longer than until now, for whoever waits for its end next."""
        self.due = min(self.due, asyncio.get_running_loop().time())

    async def end(self) -> How:
        loop = asyncio.get_running_loop()
        self.tell("handed over")
        if self.lost:
            return "lost"
        if self.due <= loop.time():
            return "done"
        self.waiter = loop.create_future()
        alarm = loop.call_at(self.due, self.tell, "done")
        try:
            return await self.waiter
        finally:
            alarm.cancel()


class AgentJobs:
    """All that is under way, by build; and on how many things each host is at work."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()  # by root
        self._of: dict[str, dict[JobKey, AgentJob]] = {}

    def __iter__(self) -> Iterator[AgentJob]:
        return (job for jobs in self._of.values() for job in jobs.values())

    def begin(self, job: AgentJob) -> AgentJob:
        self._of.setdefault(job.build, {})[job.key] = job
        self.on[job.root] += 1
        return job

    def get(self, build: str, key: JobKey) -> AgentJob | None:
        return self._of.get(build, {}).get(key)

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
