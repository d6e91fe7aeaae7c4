"""Answers why builds and requests got no host, from the stored decisions and from fallbacks."""

from dataclasses import dataclass

from bus.decisions import FindRefused, RefusedFound
from bus.queries import DecisionFound, FindDecision, FindWaiting, WaitingFound
from bus.sql.database import Database
from scheduler_worker.placing.scheduler import Scheduler
from scheduler_worker.store import decisions

PAGE = 500


@dataclass(frozen=True)
class Explanations:
    """The decisions about requests without a host."""

    database: Database
    scheduler: Scheduler

    async def refused(self, question: FindRefused) -> RefusedFound:
        """Return a page of the builds that ended without a host."""
        async with self.database.read() as tx:
            return await decisions.refused(tx, question)

    async def decision(self, question: FindDecision) -> DecisionFound:
        """Return why a build or request has no host."""
        async with self.database.read() as tx:
            found = await decisions.decision_of(tx, question.id)
        for fallback in self.scheduler.fallbacks:
            found = await fallback.explain(question.id, found)
        return found

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        """Return the requests that wait for capacity."""
        for fallback in self.scheduler.fallbacks:
            if (found := await fallback.waiting(question)) is not None:
                return found
        return WaitingFound(waiting=(), count=0)

    async def prune(self, keep: float) -> None:
        """Delete decisions older than `keep` seconds."""
        await self.database.delete_old(decisions.prune, self.scheduler.clock.now() - keep, PAGE)
