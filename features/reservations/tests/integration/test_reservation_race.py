"""Many writers draw from, return to and end reservations on one PostgreSQL."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable

import pytest

from berth.kit import Settings
from berth.kit.testing import allocations, placement_breaches
from bus.claims import Choice, Claimed, ConsumerClaim, Refused, Released, RuleRefused
from bus.requests import Flavor
from bus.vocabulary import Contended, LimitReached
from features.reservations.messages import (
    RESERVATION,
    EndReservation,
    FindReservations,
    MakeReservation,
    Reservation,
    ReservationEditAnswered,
    ReservationEdited,
    ReservationEditRequested,
    choice_from,
    slot_consumer,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import filling
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_release,
    a_report,
    an_order,
    on_hosts,
    racing_placements,
)
from tests.support.placement_calls import must_take

pytestmark = pytest.mark.services

WORKERS, HOSTS, ROUNDS = 4, 4, 40
R1 = uid(1, "7")


async def reserve_all(placement: Placement) -> list[str]:
    """Reserve all eight processors of every host, as one slot for each host."""
    await placement.reports.report_many([a_report(host) for host in range(HOSTS)])
    reservation = Reservation(id=R1, name="all", project="p1", flavor=Flavor(name="m", vcpus=8), count=HOSTS)
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=reservation))
    )
    slots = [slot_consumer(R1, host) for host in range(HOSTS)]
    claims = [
        ConsumerClaim(
            consumer=slot,
            generation=None,
            choices=(Choice(on_hosts(host, VCPU=8)),),
            project="p1",
            type=RESERVATION,
            parts=filling(R1),
        )
        for host, slot in enumerate(slots)
    ]
    await must_take(placement, *claims)
    return slots


async def draw_and_release(placement: Placement, worker: int, slots: list[str]) -> tuple[int, int]:
    """Draw for random instances of this worker and release some; return the numbers of draws and refusals."""
    chance, held = random.Random(worker), set[int]()
    drawn = refused = 0
    for number in range(ROUNDS):
        consumers = [1000 * worker + 10 * number + each for each in range(1, 4)]
        orders = []
        for consumer in consumers:
            hosts = chance.sample(range(HOSTS), 2)
            choices = [choice_from(slots[host], on_hosts(host, VCPU=3)) for host in hosts]
            orders.append(an_order(a_claim(consumer, *choices)))
        answers = await placement.claims.claim_many(orders)
        for consumer, answer in zip(consumers, answers, strict=True):
            [result] = answer.results
            assert not isinstance(result, Contended)
            if isinstance(result, Claimed):
                drawn += 1
                held.add(consumer)
            else:
                assert isinstance(result, Refused), result
                assert all(isinstance(refusal, RuleRefused) for refusal in result.refusals)
                refused += 1
        ending = chance.sample(sorted(held), len(held) // 2)
        held.difference_update(ending)
        releases = [a_release(consumer, "any") for consumer in ending]
        for released in await placement.claims.release_many(releases):
            assert isinstance(released.result, Released)
    releases = [a_release(consumer, "any") for consumer in held]
    assert all(isinstance(each.result, Released) for each in await placement.claims.release_many(releases))
    return drawn, refused


async def race(racers: list[Placement], slots: list[str]) -> tuple[int, int]:
    work = [draw_and_release(placement, worker, slots) for worker, placement in enumerate(racers, 1)]
    drawn, refused = zip(*await asyncio.gather(*work), strict=True)
    return sum(drawn), sum(refused)


async def test_a_slot_is_never_drawn_twice_and_gets_everything_back(database_url: str) -> None:
    async with racing_placements(database_url, WORKERS) as racers:
        slots = await reserve_all(racers[0])
        drawn, refused = await race(racers, slots)
        assert drawn > 50 and refused > 50
        assert await placement_breaches(racers[0].database) == []
        found = await racers[0].of(ReservationOperations).find(FindReservations(ids=(R1,)))
        whole = {slot: on_hosts(host, VCPU=8) for host, slot in enumerate(slots)}
        assert {slot.consumer: slot.held for slot in found.slots[R1]} == whole


async def test_an_end_during_the_race_leaves_nothing_reserved(database_url: str) -> None:
    async with racing_placements(database_url, WORKERS) as racers:
        slots = await reserve_all(racers[0])
        end = ReservationEditRequested(edit=EndReservation(reservation=R1))

        async def end_after_some_draws() -> None:
            while len(await allocations(racers[0].database)) <= HOSTS:
                pass
            await racers[0].of(ReservationOperations).edit(end)

        _, outcome = await asyncio.gather(end_after_some_draws(), race(racers, slots))
        assert outcome[0] > 0
        await racers[1].of(ReservationOperations).edit(end)
        assert await allocations(racers[0].database) == {}
        assert await placement_breaches(racers[0].database) == []


async def test_simultaneous_requests_do_not_exceed_the_limits(database_url: str) -> None:
    settings = Settings().having(max_reservations=12, max_reservations_project=5)
    async with racing_placements(database_url, WORKERS, settings) as racers:

        def made(number: int) -> Awaitable[ReservationEditAnswered]:
            reservation = Reservation(
                id=uid(number, "7"),
                name=f"r{number}",
                project=f"p{number % 4}",
                flavor=Flavor(name="m", vcpus=1),
            )
            order = ReservationEditRequested(edit=MakeReservation(reservation=reservation))
            return racers[number % WORKERS].of(ReservationOperations).edit(order)

        results = [answer.result for answer in await asyncio.gather(*map(made, range(200)))]
        assert {type(result) for result in results} == {ReservationEdited, LimitReached}
        found = (await racers[0].of(ReservationOperations).find(FindReservations())).reservations
        assert len(found) == sum(isinstance(result, ReservationEdited) for result in results) == 12
        assert max(Counter(each.project for each in found).values()) <= 5
