"""Counts why requests got no host and why placement refused claims, and stores the reasons for queries."""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import Counter

from bus.claims import Claimed, ClaimResult, Refusal, Refused, RuleRefused
from bus.clock import Clock
from bus.messages import BuildRequested, BuildUnplaceable
from bus.sql.database import Database
from scheduler_worker.hosts import UNPLACEABLE
from scheduler_worker.store import decisions

CLAIMED = Counter("berth_scheduler_claims", "claims of instances, by placement's answer", ["result"])
TURNED_DOWN = Counter("berth_scheduler_choices_refused", "hosts refused by placement, by reason", ["why"])


def count_claims(results: Sequence[ClaimResult]) -> None:
    refusals = [
        refusal
        for result in results
        if isinstance(result, Claimed | Refused)
        for refusal in (result.refused if isinstance(result, Claimed) else result.refusals)
    ]
    for meter, counted in ((CLAIMED, Tally(map(_name, results))), (TURNED_DOWN, Tally(map(_name, refusals)))):
        for name, count in counted.items():
            meter.labels(name).inc(count)


def _name(result: ClaimResult | Refusal) -> str:
    return result.code if isinstance(result, RuleRefused) else type(result).__name__.lower()


class RefusalRecords:
    """Stores why builds and moves got no host, for later queries, and counts these builds."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add_builds(self, ended: Sequence[tuple[BuildRequested, Sequence[object]]]) -> None:
        """Store why builds got no host, from the messages that report an unplaceable build."""
        listed = [(request, message) for request, messages in ended for message in messages]
        ending = [(asked, message) for asked, message in listed if isinstance(message, BuildUnplaceable)]
        if ending:
            UNPLACEABLE.inc(len(ending))
            async with self._database.write() as tx:
                await decisions.add(tx, ending, self._clock.now())

    async def add(self, refusals: Sequence[decisions.StoredRefusal]) -> None:
        """Store why requests of features, such as moves, were refused."""
        if refusals:
            async with self._database.write() as tx:
                await decisions.add_refusals(tx, refusals, self._clock.now())
