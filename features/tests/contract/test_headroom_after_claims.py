"""Failover headroom after hypothetical claims, compared with the headroom after the same claims are made."""

from collections.abc import Sequence
from typing import Any

import pytest

from berth.kit.testing import allocations
from bus.claims import ConsumerClaim, ReleaseRequested
from bus.domains import LabelEditRequested
from bus.parts import ClaimParts
from bus.requests import Flavor
from features.groups.constraints import DomainConstraints
from features.groups.messages import GroupEditRequested, GroupPolicy, MakeGroup
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from features.headroom.controller import HeadroomController
from features.headroom.messages import FindHeadroom, Headroom
from features.preemption.messages import Preempts, Victim
from features.preemption.rule import victims_of
from features.reservations.messages import (
    RESERVATION,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    choice_from,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import filling
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, on_hosts
from tests.support.placement_calls import must_take

HEADROOM, SEASON = uid(1, "7"), uid(2, "7")
APART, TOGETHER, SPREAD = uid(1, "9"), uid(2, "9"), uid(3, "9")
SLOT = 90  # consumer that is a slot of the reservation SEASON
NEVER_COVERED = "1 instances: server groups with a required topology are not covered"


@pytest.fixture
def url() -> str:
    """Return one type of database: the tests of each feature run the statements on both."""
    return "sqlite+aiosqlite://"


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    """Report hosts with eight processors: hosts 1 and 2 in rack r1, host 3 in rack r2, host 4 in none."""
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3, 4)])
    for number, rack in ((1, "r1"), (2, "r1"), (3, "r2")):
        await placement.reports.label(LabelEditRequested(roots=(uid(number, "a"),), set={"rack": rack}))
    policies: dict[str, GroupPolicy] = {APART: "anti-affinity", TOGETHER: "affinity"}
    for group, policy in policies.items():
        edit = MakeGroup(group=group, name=policy, project="p1", policy=policy)
        await placement.of(ServerGroups).edit(GroupEditRequested(edit=edit))


async def reserve(placement: Placement, id_: str, **fields: Any) -> None:
    reservation = Reservation(id=id_, name=id_, flavor=Flavor(name="any"), **fields)
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=reservation))
    )


async def found(placement: Placement, *claims: ConsumerClaim) -> Headroom:
    [headroom] = (await placement.of(HeadroomController).find(FindHeadroom(claims=claims))).headrooms
    return headroom


def boot(consumer: int, host: int, vcpus: int, **fields: Any) -> ConsumerClaim:
    return a_claim(consumer, on_hosts(host, VCPU=vcpus), **fields)


def drawing(consumer: int, host: int, vcpus: int) -> ConsumerClaim:
    return a_claim(consumer, choice_from(uid(SLOT), on_hosts(host, VCPU=vcpus)))


def replacing(victim: int) -> Preempts:
    preempted = Victim(build=uid(victim), generation=1, attempt=1, holder=uid(victim, "5"))
    return Preempts(victims=(preempted,), cell="c1", priority=7)


RESERVED = [
    boot(number, host, vcpus, type=RESERVATION, parts=filling(SEASON))
    for number, host, vcpus in ((SLOT, 3, 4), (SLOT + 1, 4, 8))
]
IN_ROWS = DomainConstraints(spread="rack")
CASES: dict[str, tuple[tuple[str, ...], Sequence[ConsumerClaim], Sequence[ConsumerClaim], str]] = {
    # levels, claims before, hypothetical claims, why the headroom would end
    "a slot fits on another host": (("host",), [boot(1, 1, 4)], [boot(2, 3, 8)], ""),
    "the claims take the capacity of the last slot": (
        ("host",),
        [],
        [boot(number, number, 8) for number in (1, 2, 3, 4)],
        "host host-1: no host outside of it has free capacity for 8 VCPU",
    ),
    "the host has no label": (
        ("rack",), [], [boot(1, 4, 1)], "1 instances: their hosts have no label of level rack",
    ),
    "members of an anti-affinity group are on all hosts": (
        ("host",),
        [boot(number, number, 1, parts=joining(APART)) for number in (1, 2)],
        [boot(number, number, 1, parts=joining(APART)) for number in (3, 4)],
        "host host-1: no further host outside of it and without members of server group anti-affinity has "
        "free capacity for 1 VCPU",
    ),
    "a second member joins an affinity group": (
        ("host",),
        [boot(1, 1, 1, parts=joining(TOGETHER))],
        [boot(2, 1, 1, parts=joining(TOGETHER))],
        "2 instances: server groups with policy affinity and several members cannot leave a lost host",
    ),
    "the first member joins an affinity group": (("host",), [], [boot(1, 1, 1, parts=joining(TOGETHER))], ""),
    "the claim makes a group with a required topology": (
        ("host",), [], [boot(1, 1, 1, parts=joining(SPREAD, IN_ROWS))], NEVER_COVERED,
    ),
    "a claim draws from a reservation": (
        ("rack",), RESERVED, [drawing(1, 3, 4), boot(2, 1, 3)], "",
    ),
    "the preempted instance needs no slot": (
        ("host",),
        [*RESERVED[1:], boot(1, 1, 5), boot(3, 3, 5)],
        [boot(9, 3, 5, parts=ClaimParts(replacing(3)))],
        "",
    ),
    "the capacity of the preempted instance is free for slots": (
        ("host",),
        [*RESERVED[1:], boot(1, 1, 5), boot(3, 3, 5)],
        [boot(9, 3, 3, parts=ClaimParts(replacing(3))), boot(4, 1, 2)],
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("levels", "before", "claims", "why"), CASES.values(), ids=CASES.keys())
async def test_the_headroom_after_hypothetical_claims_is_that_after_the_claims(
    placement: Placement,
    levels: tuple[str, ...],
    before: Sequence[ConsumerClaim],
    claims: Sequence[ConsumerClaim],
    why: str,
) -> None:
    await reserve(placement, SEASON, project="p1")
    await reserve(placement, HEADROOM, use="failover", levels=levels)
    for each in before:
        await must_take(placement, each)
    await placement.of(HeadroomController).adjust()
    held = await allocations(placement.database)
    supposed = await found(placement, *claims)
    assert supposed.kept and supposed.lacking == ()
    assert supposed.lacking_then == ((why,) if why else ())
    assert await allocations(placement.database) == held  # nothing was claimed
    await must_take(placement, *claims)
    for victim in victims_of(claims):
        destroyed = ReleaseRequested(consumer=victim.holder, generation="any")
        await placement.claims.release_many([destroyed])
    await placement.of(HeadroomController).adjust()
    after = await found(placement)
    assert (after.kept, after.lacking) == (not why, supposed.lacking_then)
