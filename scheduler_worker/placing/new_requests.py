"""Places new build requests, and stores why some of them got no host."""

from collections.abc import Sequence

from bus.errors import Poison, Retry
from bus.messages import BuildRequested
from scheduler_worker.placing.scheduler import PlacingOutcome, Scheduler
from scheduler_worker.refusals import RefusalRecords


class NewRequests:
    """The kernel's handler of `build.requested`: places requests, and records why some got no host."""

    def __init__(self, scheduler: Scheduler, refusals: RefusalRecords) -> None:
        self._scheduler = scheduler
        self._refusals = refusals

    async def place_many(self, requests: Sequence[BuildRequested]) -> Sequence[PlacingOutcome]:
        """Return for each request its messages, `Retry` (deliver it again) or `Poison` (dead-letter it)."""
        outcomes = await self._scheduler.place_many(requests)
        messages = [outcome if isinstance(outcome, list | tuple) else () for outcome in outcomes]
        stored = await self._refusals.add_builds(list(zip(requests, messages, strict=True)))
        return [
            outcome if isinstance(outcome, Retry | Poison) else published
            for outcome, published in zip(outcomes, stored, strict=True)
        ]
