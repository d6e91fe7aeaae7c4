"""Trials of policies with other reservations."""

from typing import Any

from msgspec.structs import replace

from bus.messages import BuildRequested
from bus.reports import Inventory
from features.policies.messages import TRY_POLICY, PolicyTried, TrialPolicy, TryPolicy
from features.policies.with_reservations.subject import SUBJECT, ReservationsSupposed, encode
from features.reservations.messages import (
    EDIT_RESERVATION,
    FILL_RESERVATION,
    FillReservation,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
)
from features.reservations.tests.support.reservation_parts import naming
from features.what_if.messages import WHAT_IF, WhatIf
from tests.support.ids import uid
from tests.support.scheduler_builders import SMALL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until
from tests.support.waiting_world import WaitingWorld, waiting_world

MUCH_RAM = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=8192), "DISK_GB": Inventory(total=80)}


async def tried(world: WaitingWorld, policy: TrialPolicy, *requests: BuildRequested) -> PolicyTried:
    return await world.bus.asker(TRY_POLICY)(TryPolicy(policy=policy, requests=requests))


def supposing(**reservations: Any) -> TrialPolicy:
    supposed = ReservationsSupposed(**reservations)
    return TrialPolicy(supposes={SUBJECT: encode(supposed).decode()})


async def fits_two(world: WaitingWorld) -> bool:
    """Return whether an instance with all processors of a host fits twice."""
    question = WhatIf(request=a_request(5, flavor=replace(SMALL, vcpus=8)), count=2)
    return (await world.bus.asker(WHAT_IF)(question)).fits


async def report_both(world: WaitingWorld, first: dict[str, Inventory], second: dict[str, Inventory]) -> None:
    await world.report(1, first)
    await world.report(2, second)
    await until(lambda: fits_two(world), "the scheduler has read both reports")


ALL = replace(SMALL, vcpus=8)


@in_virtual_time
async def test_a_reservation_on_trial_leaves_less_for_requests() -> None:
    async with waiting_world() as world:
        await report_both(world, MUCH_RAM, MUCH_RAM)
        held = a_request(7, flavor=ALL, alternates=0)
        for _ in range(2):  # the first trial left nothing behind
            policy = supposing(reserves=(held,))
            requests = [a_request(1, instances=8), a_request(2, instances=8), a_request(3, instances=9)]
            found = (await tried(world, policy, *requests)).results
            assert [bool(each.present.hosts) for each in found] == [True, True, True]
            assert [bool(each.trial.hosts) for each in found] == [True, True, False]
        both = replace(held, instances=(uid(1), uid(2), uid(3)))
        refused = await tried(world, supposing(reserves=(both,)), a_request(1))
        assert "no hosts for all 3 slots of reservation" in refused.refusal


@in_virtual_time
async def test_without_a_reservation_its_capacity_is_free_and_its_own_requests_get_none() -> None:
    async with waiting_world() as world:
        await world.report(1, MUCH_RAM)
        season = Reservation(id=uid(5), name="season", project="p1", flavor=ALL)
        edit = ReservationEditRequested(edit=MakeReservation(reservation=season))
        await world.bus.asker(EDIT_RESERVATION)(edit)

        async def filled() -> bool:
            ask = world.bus.asker(FILL_RESERVATION)
            return not (await ask(FillReservation(reservation=season.id))).missing

        await until(filled, "its slot has a host")
        own = a_request(2, project="p1", parts=naming(season.id))
        policy = supposing(without=(season.id,))

        async def held() -> bool:
            [result] = (await tried(world, policy, a_request(1))).results
            return not result.present.hosts and result.trial.hosts == ("host-1",)

        await until(held, "the scheduler has read the slot")
        [result] = (await tried(world, policy, own)).results
        assert (result.present.hosts, result.trial.hosts) == (("host-1",), ())
        assert result.trial.why == "its reservation is removed"
