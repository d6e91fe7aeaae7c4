"""An import writes providers in bulk into a berth and one by one into another Placement, with equal results.

Into an OpenStack Placement: tests/compliance/test_import.py.
"""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio

from berth.importing.bring_over import Import, Outcome
from berth.importing.client import PlacementClient
from berth.importing.placement_contents import ImportedConsumer, PlacementContents, differences
from berth.importing.writers import ProviderWriter, write_in_bulk, write_stepwise, writer_for
from tests.support.http_placement import HttpPlacement, an_api, claim_in_json
from tests.support.ids import uid

MEMORY = "sqlite+aiosqlite://"
WRITERS: dict[str, Callable[[PlacementClient], ProviderWriter]] = {
    "bulk": lambda target: partial(write_in_bulk, target),
    "stepwise": lambda target: partial(write_stepwise, target),
}


@pytest_asyncio.fixture
async def source() -> AsyncIterator[HttpPlacement]:
    async with an_api(MEMORY) as api:
        yield api


@pytest_asyncio.fixture
async def target() -> AsyncIterator[HttpPlacement]:
    async with an_api(MEMORY) as api:
        yield api


def client_of(api: HttpPlacement) -> PlacementClient:
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=True)
    return PlacementClient("http://placement", "admin", transport=transport)


def ignored(label: str, done: int, total: int) -> None:
    pass


async def carry(
    source: HttpPlacement, target: HttpPlacement, how: str = "stepwise", *, prune: bool = True
) -> tuple[Outcome, list[str]]:
    """Import the source into the target; return the outcome and the remaining differences."""
    async with client_of(source) as there, client_of(target) as here:
        theirs, ours = await there.world(ignored), await here.world(ignored)
        outcome = await Import(theirs, ours, here, WRITERS[how](here), ignored).run(prune)
        left = differences(await there.world(ignored), await here.world(ignored))
    return outcome, [str(difference) for difference in left]


async def fill(api: HttpPlacement) -> None:
    """Make a host with a child, aggregates, traits and inventories, and consumers with and without a type."""
    await api.made("/traits/CUSTOM_RED")
    await api.made("/resource_classes/CUSTOM_VF")
    await api.provider(uid(1, "a"), VCPU=8, MEMORY_MB=4096)
    await api.provider(uid(2, "a"), parent=uid(1, "a"), CUSTOM_VF=4)
    traits = {"traits": ["CUSTOM_RED", "COMPUTE_NODE"], "resource_provider_generation": 1}
    await api.made(f"/resource_providers/{uid(1, 'a')}/traits", traits)
    aggregates = {"aggregates": [uid(9, "d")], "resource_provider_generation": 2}
    await api.made(f"/resource_providers/{uid(1, 'a')}/aggregates", aggregates)
    held = (uid(1, "a"), {"VCPU": 2, "MEMORY_MB": 512}), (uid(2, "a"), {"CUSTOM_VF": 1})
    await api.made(f"/allocations/{uid(1)}", claim_in_json(*held))
    await api.made(f"/allocations/{uid(2)}", claim_in_json((uid(1, "a"), {"VCPU": 1}), kind="MIGRATION"))
    untyped = claim_in_json((uid(1, "a"), {"VCPU": 1}))
    del untyped["consumer_type"]
    await api.made(f"/allocations/{uid(3)}", untyped, minor=36)


@pytest.mark.parametrize("how", WRITERS)
async def test_everything_is_imported_and_a_repeated_import_changes_nothing(
    source: HttpPlacement, target: HttpPlacement, how: str
) -> None:
    await fill(source)
    outcome, left = await carry(source, target, how)
    assert (outcome.made, outcome.claimed, outcome.failed, left) == (2, 3, {}, [])
    before = await generations(target)
    outcome, left = await carry(source, target, how)
    assert outcome.nothing and left == []
    assert await generations(target) == before


async def test_changes_at_berth_are_written_back_to_the_source(
    source: HttpPlacement, target: HttpPlacement
) -> None:
    await fill(source)
    assert await carry(source, target, "bulk") == (Outcome(names=2, made=2, claimed=3), [])
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


async def test_a_berth_is_written_in_bulk(target: HttpPlacement) -> None:
    async with client_of(target) as here:
        writer = await writer_for(here)
        assert isinstance(writer, partial) and writer.func is write_in_bulk


def test_a_placement_without_consumer_types_gets_and_is_compared_without_types() -> None:
    typed = ImportedConsumer(id="c", project="p", user="u", type="INSTANCE", allocations={})
    assert PlacementContents(consumers={"c": typed}).untyped().consumers["c"].type is None


async def change(
    api: HttpPlacement, id_: str, *, inventories: dict[str, Any], traits: list[str] | None = None
) -> None:
    path = f"/resource_providers/{id_}"
    parts: list[tuple[str, dict[str, Any]]] = [("inventories", {"inventories": inventories})]
    parts += [("traits", {"traits": traits})] if traits is not None else []
    for part, body in parts:
        generation = (await api("GET", path)).json()["generation"]
        await api.made(f"{path}/{part}", {**body, "resource_provider_generation": generation})


async def generations(api: HttpPlacement) -> dict[str, int]:
    listed = (await api("GET", "/resource_providers")).json()["resource_providers"]
    return {provider["uuid"]: provider["generation"] for provider in listed}
