"""`scheduler.select`: hosts for instances that another system builds, such as Nova."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from bus.errors import Unavailable
from bus.queries import DecisionFound
from bus.reports import Inventory
from bus.requests import Image, ResourceGroup
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.statement import Transaction
from bus.vocabulary import Allocations
from features.nova import selecting
from features.nova.messages import HostsAnswered, HostsAsked
from features.nova.selecting import HostSelection
from features.nova.tests.support.selected_hosts import SMALL, add_hosts, ask, hosts_of
from features.nova.tests.support.selected_hosts import decisions as decisions
from features.nova.tests.support.selected_hosts import selection as selection
from placement_worker.testing import Placement
from scheduler_worker.extension import ChoicePolicy
from scheduler_worker.extension import decisions as stored_decisions
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import claim
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import scheduler_of


async def held(placement: Placement, instance: int) -> Allocations:
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(instance),)))
    return found.consumers[0].allocations if found.consumers else {}


async def test_all_instances_of_a_request_are_claimed_or_none(
    placement: Placement, selection: HostSelection
) -> None:
    answer = await ask(selection, 1, 2, 3)
    assert [placed.build for placed in answer.placed] == [uid(1), uid(2), uid(3)]
    assert len(answer.placed[0].alternates) + len({*hosts_of(answer)}) <= 3
    refused = await ask(selection, 4, 5, 6, 7)
    assert refused.refused is not None
    assert "free capacity for 3 of the 4 instances" in refused.refused.reason
    assert await held(placement, 4) == {}


async def test_the_audit_expects_no_cell_to_have_records_of_the_instances(
    placement: Placement, selection: HostSelection
) -> None:
    await ask(selection, 1)
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(1),)))
    assert [consumer.client for consumer in found.consumers] == [True]


async def test_a_repeated_query_returns_the_same_claim(
    placement: Placement, selection: HostSelection
) -> None:
    first, again = await ask(selection, 1, 2), await ask(selection, 1, 2)
    assert hosts_of(again) == hosts_of(first)
    assert sum(map(len, (await held(placement, 1), await held(placement, 2)))) == 2
    assert again.placed[0].alternates


async def on_busy_hosts(placement: Placement, decisions: Database, **io_ops: bool) -> HostSelection:
    """Return a selection among three hosts that have eight builds in progress each."""
    scheduler = scheduler_of(placement, policy=ChoicePolicy.from_names(options={"io_ops": io_ops}))
    await add_hosts(placement, scheduler, building=8)
    return HostSelection(scheduler, decisions)


async def test_the_limit_of_builds_at_once_can_be_enabled_for_nova(
    placement: Placement, decisions: Database
) -> None:
    answer = await ask(await on_busy_hosts(placement, decisions, for_nova=True), 1)
    assert not answer.placed
    assert "io_ops removed 3" in answer.why


async def test_an_evacuated_instance_holds_its_source_and_its_destination(
    placement: Placement, selection: HostSelection
) -> None:
    source = on_hosts(1, VCPU=2)
    await claim(placement, an_order(a_claim(1, source)))
    evacuation: dict[str, Any] = {"ignore_hosts": ("host-1",), "wanted_host": "host-3"}
    answer = await ask(selection, 1, **evacuation)
    assert hosts_of(answer) == ["host-3"]
    assert await held(placement, 1) == {**source, **on_hosts(3, VCPU=2)}
    again = await ask(selection, 1, **evacuation)  # the answer was lost
    assert hosts_of(again) == ["host-3"]
    assert again.placed[0].chosen.choice.allocations == on_hosts(3, VCPU=2)
    assert await held(placement, 1) == {**source, **on_hosts(3, VCPU=2)}


async def test_groups_and_traits_in_addition_to_the_flavor_are_met(
    placement: Placement, selection: HostSelection
) -> None:
    port = ResourceGroup(suffix="port-1", resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000})
    stock = {"VCPU": Inventory(total=4), "NET_BW_EGR_KILOBIT_PER_SEC": Inventory(total=1500)}
    report = a_report(2, sequence=2, inventories=stock, traits=("CUSTOM_FAST",))
    assert await placement.reports.report_many([report]) == [None]
    answer = await ask(selection, 1, groups=(port,), root_required=("CUSTOM_FAST",))
    assert hosts_of(answer) == ["host-2"]
    assert (await held(placement, 1))[uid(2, "a")]["NET_BW_EGR_KILOBIT_PER_SEC"] == 1000
    assert (await ask(selection, 2, groups=(port,))).refused is not None
    assert (
        await ask(selection, 2, root_forbidden=("CUSTOM_FAST",), wanted_host="host-2")
    ).refused is not None


async def test_the_last_decision_about_an_instance_is_stored(
    selection: HostSelection, decisions: Database
) -> None:
    async def stored(instance: int) -> DecisionFound:
        await selection.store()
        async with decisions.read() as tx:
            return await stored_decisions.decision_of(tx, uid(instance))

    refused = await ask(selection, 1, ignore_hosts=("host-1", "host-2", "host-3"))
    assert refused.refused is not None
    found = await stored(1)
    assert (found.known, found.placed, found.reason) == (True, None, refused.refused.reason)
    [placed] = (await ask(selection, 1, wanted_host="host-2")).placed
    assert (await stored(1)).placed == placed


@pytest.fixture
def two_unstored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "UNSTORED", 2)


@pytest.mark.usefixtures("two_unstored")
async def test_the_newest_decisions_are_kept_while_the_database_is_unreachable(
    selection: HostSelection, decisions: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures, new = decisions.write, [Unavailable("away")], iter((3, 4))

    @asynccontextmanager
    async def write_after_a_decision() -> AsyncIterator[Transaction]:
        if instance := next(new, 0):
            await ask(selection, instance)
        if failures:
            raise failures.pop()
        async with write() as tx:
            yield tx

    async def known() -> list[int]:
        async with decisions.read() as tx:
            return [n for n in (1, 2, 3, 4) if (await stored_decisions.decision_of(tx, uid(n))).known]

    monkeypatch.setattr(decisions, "write", write_after_a_decision)
    await ask(selection, 1)
    await ask(selection, 2)
    with pytest.raises(Unavailable):
        await selection.store()
    assert await known() == []
    await selection.store()
    assert await known() == [2, 3]  # 4 was decided during the write
    await selection.store()
    assert await known() == [2, 3, 4]


async def test_a_rebuild_checks_the_present_host_without_a_claim(
    placement: Placement, selection: HostSelection
) -> None:
    await claim(placement, an_order(a_claim(1, on_hosts(1, VCPU=4))))

    async def check(*traits: str) -> HostsAnswered:
        image = Image(name="i", traits_required=traits)
        request = replace(a_request(flavor=SMALL, image=image), instances=(uid(1),), forced_host="host-1")
        [answer] = await selection.answer_many([HostsAsked(request=request, do="check")])
        return answer

    assert await check() == HostsAnswered()
    refused = (await check("CUSTOM_FAST")).refused
    assert refused is not None
    assert "CUSTOM_FAST" in refused.reason
    assert await held(placement, 1) == on_hosts(1, VCPU=4)
