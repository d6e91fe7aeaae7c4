"""A worker with scripted answers of shadow mode, with all kinds of differences, for pages and commands."""

from random import Random
from typing import Any

from msgspec.structs import replace

from bus.clock import Clock
from bus.decisions import Decision, Removal
from bus.worker import Worker, answers
from features.nova.with_what_if.core.fragmentation import FreeMemory
from features.nova.with_what_if.core.shadow_report import (
    DecidedRequest,
    NovaOutcome,
    merged_periods,
    of_instance,
    report,
)
from features.nova.with_what_if.messages import (
    NOVA_REPORT,
    FindNovaReport,
    MissingPeriod,
    NovaReportFound,
    UnreadQueue,
)
from tests.support.ids import uid

SHADOWED = uid(41)  # an instance that berth refused
_HOSTS = [f"compute-{number}" for number in range(1, 13)]
_DECISION = Decision(
    considered=12,
    code="zone",
    removals=(
        Removal(constraint="resources", removed=3, left=9, code="class", hosts=("compute-1",)),
        Removal(constraint="zone az9", removed=9, left=0, code="zone"),
    ),
    helps=("a host with free capacity in zone az9",),
)


def rows(now: float) -> tuple[list[DecidedRequest], list[NovaOutcome]]:
    """Return requests with their results: 40 that Nova and berth placed, and a few of each other kind."""
    chance = Random(7)
    requests, outcomes = [], []
    for number in range(1, 61):
        at, chosen = now - 30.0 * number, chance.choice(_HOSTS)
        fields: dict[str, Any] = {
            "id": uid(number, "f"), "request": f"req-{number}", "instance": uid(number), "at": at,
            "project": uid(1), "flavor": chance.choice(("m1.small", "m1.large")), "hosts": (chosen,),
            "seconds": chance.uniform(0.005, 0.03), "lag": 0.05,
            "free": FreeMemory(total=1024, flavor=24, stranded=123),
        }  # fmt: skip
        known: dict[str, Any] = {"request": f"req-{number}", "instance": uid(number)}
        if number <= 40:
            host = chosen if number % 4 else chance.choice(_HOSTS[:4])
            outcomes.append(NovaOutcome(event="used", at=at + 3, operation="boot", host=host, **known))
        elif number <= 46:
            fields |= {"hosts": (), "reason": "zone az9 removed the last 9 of 12 hosts", "code": "zone"}
            outcomes.append(NovaOutcome(event="used", at=at + 3, operation="resize", host=chosen, **known))
        elif number <= 52:
            failure = {"cause": "NoValidHost", "reason": "No valid host was found."}
            outcomes.append(NovaOutcome(event="refused", at=at + 1, operation="boot", **failure, **known))
        elif number <= 56:
            fields |= {"hosts": (), "undecided": "berth cannot decide about its NUMA topology"}
        if number <= 46:
            seconds = chance.uniform(0.05, 0.4)
            outcomes.append(NovaOutcome(event="selected", at=at + seconds, **known))
        requests.append(DecidedRequest(**fields))
    return requests, outcomes


def a_shadow_worker(clock: Clock | None = None) -> Worker:
    clock = clock or Clock()

    async def answer(question: FindNovaReport) -> NovaReportFound:
        requests, outcomes = rows(clock.now())
        if question.instance:
            requests = [request for request in requests if request.instance == question.instance]
            listed = tuple(replace(each, decision=_DECISION) for each in of_instance(requests, outcomes))
            return NovaReportFound(until=clock.now(), requests=len(listed), listed=listed)
        recent = [request for request in requests if request.at >= question.since]
        since, until, missing = question.since, clock.now(), [MissingPeriod(since=600, until=900)]
        found = report(recent, outcomes, _HOSTS, since=since, until=until, listed=question.listed)
        unread = UnreadQueue(queue="versioned_notifications.info", messages=1234)
        return replace(found, missing=merged_periods(missing), unread=(unread,))

    return Worker("nova_shadow", answers=[answers(NOVA_REPORT, answer)])
