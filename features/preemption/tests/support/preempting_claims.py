"""A full host and claims that preempt its instances."""

from typing import Any

import pytest

from bus.claims import Claimed, ClaimRequested, ClaimResult
from features.preemption.messages import Preempts, Victim
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, on_hosts

HIGH, LOW, LOWER, HOLDER, HOLDER2 = 1, 2, 3, 4, 5


@pytest.fixture(autouse=True)
async def full_host(placement: Placement) -> None:
    """Fill the 8 processors of host 1: the instance LOW uses 6, and the instance LOWER uses 2."""
    await placement.reports.report_many([a_report(number) for number in (1, 2)])
    for consumer, vcpus in ((LOW, 6), (LOWER, 2)):
        assert isinstance(await take(placement, consumer, vcpus), Claimed)


async def take(placement: Placement, consumer: int, vcpus: int, **fields: Any) -> ClaimResult:
    claim = a_claim(consumer, on_hosts(1, VCPU=vcpus), **fields)
    [answer] = await placement.claims.claim_many([ClaimRequested(claims=(claim,))])
    return answer.results[0]


def a_victim(consumer: int = LOW, holder: int = HOLDER, generation: int = 1, **fields: Any) -> Victim:
    return Victim(build=uid(consumer), generation=generation, attempt=1, holder=uid(holder), **fields)


def taking(*victims: Victim, **fields: Any) -> Preempts:
    return Preempts(victims=victims, cell="c1", priority=7, **fields)
