"""Requests that draw from reservations: a scheduler in front of placement."""

from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import placement_breaches
from bus.host_health import DISABLED, HostHealth
from bus.messages import BuildRequested, BuildUnplaceable, HostReported
from bus.reports import HostState
from bus.requests import Flavor
from features.reservations.messages import (
    FillReservation,
    FindReservations,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    ReservationFilled,
    slot_consumer,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.drawing import (
    LARGE,
    R1,
    SMALL,
    a_scheduler_for,
    filler_of,
    placed_on,
    reason_of,
    reserve,
    undrawn,
)
from features.reservations.tests.support.drawing import hosts as hosts
from features.reservations.tests.support.reservation_parts import naming as naming_it
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import messages_of, scheduler_of


@pytest.fixture
def url() -> str:
    """Return one type of database: test_reservations.py runs the statements on both."""
    return "sqlite+aiosqlite://"


def naming(number: int, flavor: Flavor = LARGE, project: str = "p1", **fields: Any) -> BuildRequested:
    return a_request(number, flavor=flavor, project=project, parts=naming_it(R1), **fields)


async def fill_up(placement: Placement) -> None:
    """Take all capacity that is not reserved."""
    claims = [a_claim(90 + host, on_hosts(host, VCPU=8), project="p9") for host in (1, 2, 3)]
    await placement.claims.claim_many([an_order(claim) for claim in claims])


async def test_slots_are_claimed_like_builds(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    assert await reserve(hosts, scheduler) == ReservationFilled(placed=2)
    found = await hosts.of(ReservationOperations).find(FindReservations())
    roots = {root for slot in found.slots[R1] for root in slot.roots}
    assert len(roots) == 2 and found.made == {R1: 2}
    assert await placed_on(scheduler, *(a_request(number, flavor=LARGE) for number in (1, 2))) != ["", ""]
    assert await placed_on(scheduler, a_request(3, flavor=LARGE)) == [""]


async def test_missing_slots_are_reported_and_claimed_later(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    filled = await reserve(hosts, scheduler, count=4)
    assert (filled.placed, filled.missing) == (3, 1)
    assert "no valid host" in filled.reason
    await hosts.reports.report_many([a_report(4)])
    states = (HostState(root=uid(4, "a"), host="host-4"),)
    await scheduler.handle(HostReported(cell="c1", agent="agent-4", sequence=1, hosts=states))
    await filler_of(scheduler).refresh()
    assert await undrawn(hosts) == 4


async def roots_of_slots(placement: Placement) -> list[str]:
    found = await placement.of(ReservationOperations).find(FindReservations(ids=(R1,)))
    return sorted(root for slot in found.slots[R1] for root in slot.roots)


async def test_a_slot_on_a_host_that_is_closed_for_its_reservation_is_not_claimed_again(
    hosts: Placement,
) -> None:
    scheduler, order = await a_scheduler_for(hosts), FillReservation(reservation=R1, closed={uid(2, "a"): 1})
    await hosts.reports.report_many([a_report(2, sequence=2, traits=(DISABLED,))])
    make = MakeReservation(reservation=Reservation(id=R1, name="season", project="p1", flavor=SMALL, count=1))
    await hosts.of(ReservationOperations).edit(ReservationEditRequested(edit=make))
    for _ in range(2):  # the order may be repeated
        assert await filler_of(scheduler).fill(order) == ReservationFilled(placed=1)
        found = await hosts.of(ReservationOperations).find(FindReservations(ids=(R1,)))
        assert [slot.consumer for slot in found.slots[R1]] == [slot_consumer(R1, 1)]
    assert await roots_of_slots(hosts) == [uid(2, "a")]


async def test_an_undrawn_slot_on_a_host_without_heartbeats_is_claimed_on_another_host(
    hosts: Placement,
) -> None:
    await reserve(hosts, await a_scheduler_for(hosts), count=1)
    [root] = await roots_of_slots(hosts)
    restarted, host = scheduler_of(hosts), f"-{root[-1]}"
    down = HostHealth(root=root, host=f"host{host}", cell="c1", agent=f"agent{host}", availability="down")
    restarted.book.restore([down])
    await filler_of(restarted).refresh()
    [moved] = await roots_of_slots(hosts)
    assert moved != root


async def test_named_hosts_are_reserved(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    assert (await reserve(hosts, scheduler, hosts=("host-3", "host-2"))).placed == 2
    found = await hosts.of(ReservationOperations).find(FindReservations())
    assert {root for slot in found.slots[R1] for root in slot.roots} == {uid(2, "a"), uid(3, "a")}
    filler = filler_of(scheduler)
    filled = await filler.fill(FillReservation(reservation=uid(9)))
    assert filled == ReservationFilled(placed=0, reason="there is no such reservation")


async def test_a_request_that_names_a_reservation_is_placed_in_it(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler)
    await fill_up(hosts)
    assert "no valid host" in await reason_of(scheduler, a_request(1, flavor=LARGE, project="p1"))
    drawn = await placed_on(scheduler, naming(2), naming(3))
    assert len(set(drawn)) == 2 and "" not in drawn
    assert await undrawn(hosts) == 0
    [refused] = await messages_of(scheduler, naming(5))
    assert isinstance(refused, BuildUnplaceable) and refused.decision.code == "reservation"
    assert await reason_of(scheduler, naming(4)) == (
        "reservation 'season': no undrawn slot fits (0 of 2 are undrawn)"
    )
    assert await placement_breaches(hosts.database) == []


async def test_a_named_reservation_is_used_though_other_hosts_are_free(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, count=1, hosts=("host-3",))
    assert await placed_on(scheduler, *(naming(number, SMALL) for number in range(1, 5))) == ["host-3"] * 4
    assert await undrawn(hosts) == 0
    assert await placed_on(scheduler, naming(5, SMALL)) == [""]


async def test_every_build_of_the_project_draws_from_an_open_reservation(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, use="open", count=1, hosts=("host-2",))
    assert await placed_on(scheduler, a_request(1, flavor=LARGE, project="p1")) == ["host-2"]
    assert await undrawn(hosts) == 0
    outside = await placed_on(scheduler, a_request(2, flavor=LARGE, project="p1"))
    assert outside in (["host-1"], ["host-3"])
    await fill_up(hosts)
    assert (await reason_of(scheduler, a_request(3, flavor=LARGE, project="p1"))).startswith("no valid host")


async def test_another_project_draws_nothing(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, use="open", count=1, hosts=("host-2",))
    await fill_up(hosts)
    assert await placed_on(scheduler, a_request(1, flavor=LARGE, project="p2")) == [""]
    assert await reason_of(scheduler, naming(2, project="p2")) == (
        f"hints.reservation: there is no reservation {R1} in this project"
    )


async def test_no_build_draws_from_headroom_by_naming_it(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, project="", use="failover")
    assert "there is no reservation" in await reason_of(scheduler, naming(1))


async def test_a_refusal_by_reserved_capacity_names_the_purpose_and_nothing_else(hosts: Placement) -> None:
    scheduler = await a_scheduler_for(hosts)
    await reserve(hosts, scheduler, purpose="Black Friday", count=3)
    [refusal] = await messages_of(scheduler, a_request(1, flavor=LARGE, project="p2"))
    assert isinstance(refusal, BuildUnplaceable)
    assert refusal.decision.helps[0] == "without the capacity reserved for 'Black Friday': 3 hosts"
    sent = str(refusal.decision.helps)
    assert "season" not in sent and "p1" not in sent and R1 not in sent
    # without the reservation, the capacity is still too small
    huge = replace(LARGE, vcpus=9)
    [refusal] = await messages_of(scheduler, a_request(2, flavor=huge, project="p2"))
    assert "reserved" not in str(refusal.decision.helps)
