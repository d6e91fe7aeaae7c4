"""An import writes providers one by one into any Placement, and writes changes back.

Into an OpenStack Placement: tests/compliance/test_import.py.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from berth.importing.bring_over import Outcome
from berth.importing.writers import write_stepwise
from berth.kit.placement_contents import ImportedConsumer, PlacementContents
from tests.support.http_placement import HttpPlacement, an_api, claim_in_json
from tests.support.ids import uid
from tests.support.imports import carry, change, client_of, fill, ignored

MEMORY = "sqlite+aiosqlite://"


@pytest_asyncio.fixture
async def source() -> AsyncIterator[HttpPlacement]:
    async with an_api(MEMORY) as api:
        yield api


@pytest_asyncio.fixture
async def target() -> AsyncIterator[HttpPlacement]:
    async with an_api(MEMORY) as api:
        yield api


async def test_changes_at_berth_are_written_back_to_the_source(
    source: HttpPlacement, target: HttpPlacement
) -> None:
    await fill(source)
    assert await carry(source, target) == (Outcome(names=2, made=2, claimed=3), [])
    # Meanwhile at berth: a boot on a new host, a deletion, a migration, and other contents of a provider.
    await target.provider(uid(3, "a"), VCPU=8)
    await target.made(f"/allocations/{uid(4)}", claim_in_json((uid(3, "a"), {"VCPU": 3})))
    await target("DELETE", f"/allocations/{uid(2)}")
    moved = claim_in_json((uid(3, "a"), {"VCPU": 2}), generation=1)
    await target.made(f"/allocations/{uid(1)}", moved)
    await change(target, uid(2, "a"), inventories={"CUSTOM_VF": {"total": 6}}, traits=["CUSTOM_RED"])

    outcome, left = await carry(target, source)
    assert left == [] and outcome.failed == {}
    assert (outcome.made, outcome.changed, outcome.claimed, outcome.released) == (1, 1, 2, 1)


async def test_an_allocation_beyond_the_inventory_is_written_back_and_the_inventory_stays(
    source: HttpPlacement, target: HttpPlacement
) -> None:
    await fill(source)
    await change(source, uid(1, "a"), inventories={"VCPU": {"total": 2}, "MEMORY_MB": {"total": 4096}})
    outcome, left = await carry(source, target)
    assert (outcome.failed, left) == ({}, [])
    answer = await target("GET", f"/resource_providers/{uid(1, 'a')}/inventories")
    assert answer.json()["inventories"]["VCPU"]["total"] == 2


async def test_a_rebuilt_host_takes_the_name_of_its_old_provider(
    source: HttpPlacement, target: HttpPlacement
) -> None:
    for api, number in ((source, 1), (target, 2)):
        body = {"name": "host-1", "uuid": uid(number, "a")}
        await api.made("/resource_providers", body, method="POST")
    outcome, left = await carry(source, target)
    assert (outcome.made, outcome.dropped, outcome.failed, left) == (1, 1, {}, [])


async def test_a_refused_provider_is_reported_with_the_reason(
    source: HttpPlacement, target: HttpPlacement
) -> None:
    for api, number in ((source, 1), (target, 2)):
        body = {"name": "host-1", "uuid": uid(number, "a")}
        await api.made("/resource_providers", body, method="POST")
    outcome, _ = await carry(source, target, prune=False)
    assert list(outcome.failed) == [uid(1, "a")]


async def test_a_change_by_another_client_meanwhile_is_read_again(
    source: HttpPlacement, target: HttpPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(source)
    await target.provider(uid(1, "a"))
    reads = 0
    async with client_of(source) as there, client_of(target) as here:
        theirs, read = await there.world(ignored), here.provider

        async def read_and_change(id_: str) -> Any:
            nonlocal reads
            reads += 1
            found = await read(id_)
            if reads == 1:
                await change(target, id_, inventories={"VCPU": {"total": 1}})
            return found

        monkeypatch.setattr(here, "provider", read_and_change)
        await here.request("PUT", "/traits/CUSTOM_RED")
        [written] = await write_stepwise(here, [theirs.providers[uid(1, "a")]])
        assert (written.did, written.why, reads) == ("changed", "", 2)


def test_a_placement_without_consumer_types_gets_and_is_compared_without_types() -> None:
    typed = ImportedConsumer(id="c", project="p", user="u", type="INSTANCE", allocations={})
    assert PlacementContents(consumers={"c": typed}).untyped().consumers["c"].type is None
