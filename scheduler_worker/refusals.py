"""Counts why requests got no host and why placement refused claims, and stores the reasons for queries."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence

from prometheus_client import Counter

from bus.claims import Claimed, ClaimResult, Refusal, Refused, RuleRefused
from bus.clock import Clock
from bus.messages import BuildRequested, BuildUnplaceable
from bus.parts import DecisionParts
from bus.repetitions import conflict, differing
from bus.sql.database import Database
from bus.vocabulary import Id, Message
from scheduler_worker.hosts import UNPLACEABLE
from scheduler_worker.store import decisions

CLAIMED = Counter("berth_scheduler_claims", "claims of instances, by placement's answer", ["result"])
TURNED_DOWN = Counter("berth_scheduler_choices_refused", "hosts refused by placement, by reason", ["why"])


def count_claims(results: Sequence[ClaimResult]) -> None:
    """Count the refused claims for the metrics, by reason."""
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

    async def add_builds(
        self, ended: Sequence[tuple[BuildRequested, Sequence[Message]]]
    ) -> list[Sequence[Message]]:
        """Store why builds got no host, from the messages that report an unplaceable build. Return the
        messages to publish: a request whose builds ended in a request with other content is refused.
        """
        listed = [(request, message) for request, messages in ended for message in messages]
        ending = [(asked, message) for asked, message in listed if isinstance(message, BuildUnplaceable)]
        if not ending:
            return [messages for _, messages in ended]
        UNPLACEABLE.inc(len(ending))
        async with self._database.write() as tx:
            before = await decisions.add(tx, ending, self._clock.now())
        return [
            [_judged(request, message, before) for message in messages] if before else messages
            for request, messages in ended
        ]

    async def add(self, refusals: Sequence[decisions.StoredRefusal]) -> Mapping[Id, DecisionParts]:
        """Store why requests of features, such as moves, were refused. Return, by id, the parts of the
        decisions that were stored before.
        """
        if not refusals:
            return {}
        async with self._database.write() as tx:
            return await decisions.add_refusals(tx, refusals, self._clock.now())


def _judged(request: BuildRequested, message: Message, before: Mapping[Id, BuildRequested]) -> Message:
    """Return the message about a request or, if its builds ended in another request, the refusal. `before`:
    the requests in which builds ended before.
    """
    if not isinstance(message, BuildUnplaceable):
        return message
    for build in message.instances:
        if build in before and (fields := differing(before[build], request)):
            return conflict(request.request, message.instances, fields, request.reply_to)
    return message
