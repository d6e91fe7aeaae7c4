"""The failover headroom after the claims of a what-if answer."""

from berth.kit import AnswerAddition
from berth.kit.testing import connected_as_commands
from bus.claims import ConsumerClaim
from bus.delivery.runner import Bus
from features.headroom.after_claims import HeadroomAfter
from features.headroom.controller import HeadroomController
from features.headroom.tests.support.headroom_command import Run
from features.headroom.tests.support.headroom_command import placement as placement
from features.headroom.tests.support.headroom_command import run as run
from features.headroom.with_what_if.what_if_part import additions
from features.what_if.messages import WhatIfAnswered
from placement_worker.testing import Placement
from tests.support.placement_builders import a_claim, an_order, on_hosts


def answered(*claims: ConsumerClaim) -> WhatIfAnswered:
    return WhatIfAnswered(fits=bool(claims), claims=claims)


async def test_what_if_says_whether_the_headroom_would_end(placement: Placement, run: Run) -> None:
    first, second = (a_claim(host + 4, on_hosts(host, VCPU=4)) for host in (1, 2))
    async with Bus(connected_as_commands()) as bus:
        assert await additions(bus, answered(first)) == AnswerAddition([], {"headroom": []})
        await run("set", "host")
        await placement.of(HeadroomController).adjust()
        [(kept, _)] = (await additions(bus, answered(first))).lines
        assert kept == "  failover headroom for any one host would still be kept"
        why = "host host-1: no host outside of it has free capacity for 4 VCPU"
        ends = await additions(bus, answered(first, second))
        assert ends.lines == [(f"  failover headroom for any one host would end: {why}", "yellow")]
        assert ends.fields == {"headroom": [HeadroomAfter(("host",), "ends", (why,))]}
        assert (await additions(bus, answered())).lines == []  # the request does not fit
        await placement.claims.claim_many(
            [an_order(a_claim(3, on_hosts(1, VCPU=3)), a_claim(4, on_hosts(2, VCPU=3)))]
        )
        [(lost, _)] = (await additions(bus, answered(a_claim(5, on_hosts(1, VCPU=1))))).lines
        assert "any one host is already not kept: host host-1" in lost
