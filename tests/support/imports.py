"""Two Placements over HTTP, and imports from one into the other."""

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx

from berth.importing.bring_over import Import, Outcome
from berth.importing.placement_contents import differences
from berth.importing.writers import ProviderWriter, write_in_bulk, write_stepwise
from berth.kit.placement_client import PlacementClient
from tests.support.http_placement import HttpPlacement, claim_in_json
from tests.support.ids import uid

Writing = Callable[[PlacementClient], ProviderWriter]


def stepwise(target: PlacementClient) -> ProviderWriter:
    return partial(write_stepwise, target)


def in_bulk(target: PlacementClient) -> ProviderWriter:
    """Return the writer for a Placement that loads providers in bulk."""
    return partial(write_in_bulk, target)


def client_of(api: HttpPlacement) -> PlacementClient:
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=True)
    return PlacementClient("http://placement", "admin", transport=transport)


def ignored(label: str, done: int, total: int) -> None:
    pass


async def carry(
    source: HttpPlacement, target: HttpPlacement, writing: Writing = stepwise, *, prune: bool = True
) -> tuple[Outcome, list[str]]:
    """Import the source into the target; return the outcome and the remaining differences."""
    async with client_of(source) as there, client_of(target) as here:
        theirs, ours = await there.world(ignored), await here.world(ignored)
        outcome = await Import(theirs, ours, here, writing(here), ignored).run(prune)
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


async def check_repeated_imports(
    source: HttpPlacement, target: HttpPlacement, writing: Writing = stepwise
) -> None:
    """Check that an import copies everything, and that a repeated import changes nothing."""
    await fill(source)
    outcome, left = await carry(source, target, writing)
    assert (outcome.made, outcome.claimed, outcome.failed, left) == (2, 3, {}, [])
    before = await generations(target)
    outcome, left = await carry(source, target, writing)
    assert outcome.nothing and left == []
    assert await generations(target) == before
