"""The Placement API on both databases: one use of each resource, races and odd input.

Every other response is tested by the published tests of Placement (`make compliance`).
"""

import asyncio
from typing import Any

import pytest

from bus.claims import ReleaseRequested
from tests.support.http_placement import HttpPlacement, claim_in_json, error_of
from tests.support.ids import uid

A, B = uid(1, "a"), uid(2, "a")
STOCK = f"/resource_providers/{A}/inventories"


async def test_a_refused_claim_has_the_figures_in_a_header(near: HttpPlacement) -> None:
    """The sentence is the API's own, which clients match."""
    await near.provider(A, VCPU=8)
    inventory = {"resource_class": "MEMORY_MB", "total": 64, "max_unit": 8}
    await near.made(STOCK, inventory, method="POST")
    for resources, says in (({"VCPU": 9}, "asked 9, free 8"), ({"MEMORY_MB": 9}, "9 breaks its max_unit")):
        refusal = await near("PUT", f"/allocations/{uid(1)}", claim_in_json((A, resources)))
        assert (refusal.status_code, refusal.headers["berth-why"]) == (409, says)


async def test_several_claims_are_all_made_or_none(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=2)
    three = {uid(number): claim_in_json((A, {"VCPU": 1})) for number in (1, 2, 3)}
    assert error_of(await door("POST", "/allocations", three))[0] == 409
    assert (await door.made(f"/resource_providers/{A}/usages", method="GET"))["usages"] == {"VCPU": 0}
    two = {uid(number): three[uid(number)] for number in (1, 2)}
    assert (await door("POST", "/allocations", two)).status_code == 204
    # they change places, on a provider that is full
    swap = {uid(1): claim_in_json(generation=1), uid(3): claim_in_json((A, {"VCPU": 1}))}
    assert (await door("POST", "/allocations", swap)).status_code == 204
    told = await door.made(f"/resource_providers/{A}/allocations", method="GET")
    assert set(told["allocations"]) == {uid(2), uid(3)}


async def test_concurrent_claims_never_exceed_the_capacity(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=20)
    body = claim_in_json((A, {"VCPU": 1}))
    answers = await asyncio.gather(*(door("PUT", f"/allocations/{uid(n)}", body) for n in range(50)))
    assert sorted(answer.status_code for answer in answers) == [204] * 20 + [409] * 30
    assert (await door.made(f"/resource_providers/{A}/usages", method="GET"))["usages"] == {"VCPU": 20}


async def test_deleting_allocations_of_a_retired_consumer_is_404_with_the_reason(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    at = f"/allocations/{uid(1)}"
    await door.made(at, claim_in_json((A, {"VCPU": 1})))
    end = ReleaseRequested(consumer=uid(1), generation=None, fenced=False, retire="deleted")
    await door.placement.claims.release_many([end])
    refusal = await door("DELETE", at)
    assert error_of(refusal)[0] == 404
    assert f"No allocations for consumer '{uid(1)}'" in refusal.text
    assert refusal.headers["berth-why"] == "deleted"


async def test_reshaper_moves_inventory_with_its_allocations(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.provider(B, parent=A)
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 2})))
    body = {
        "inventories": {
            A: {"resource_provider_generation": 2, "inventories": {}},
            B: {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        },
        "allocations": {uid(1): claim_in_json((B, {"VCPU": 2}), generation=1)},
    }
    assert (await door("POST", "/reshaper", body)).status_code == 204
    assert (await door.made(f"/resource_providers/{B}/usages", method="GET"))["usages"] == {"VCPU": 2}
    assert (await door.made(f"/resource_providers/{A}/usages", method="GET"))["usages"] == {}


async def test_an_allocation_request_can_be_claimed_unchanged(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.provider(B, parent=A, DISK_GB=8)
    found = await door.made("/allocation_candidates?resources=VCPU:1,DISK_GB:2", method="GET")
    [request] = found["allocation_requests"]
    body = claim_in_json() | request
    assert (await door("PUT", f"/allocations/{uid(1)}", body)).status_code == 204
    found = await door.made("/allocation_candidates?resources=VCPU:1", method="GET")
    assert found["provider_summaries"][B]["resources"]["DISK_GB"] == {"capacity": 8, "used": 2}
    assert found["provider_summaries"][B]["parent_provider_uuid"] == A


async def test_candidates_include_the_latest_write(door: HttpPlacement) -> None:
    query = "/allocation_candidates?resources=VCPU:8"
    await door.provider(A, VCPU=8)
    assert len((await door.made(query, method="GET"))["allocation_requests"]) == 1
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    assert (await door.made(query, method="GET")) == {"allocation_requests": [], "provider_summaries": {}}


async def test_a_provider_is_created_filled_renamed_and_deleted(door: HttpPlacement) -> None:
    created = await door("POST", "/resource_providers", {"name": "n", "uuid": A.replace("-", "").upper()})
    assert (created.status_code, created.json()["uuid"]) == (200, A)
    stored = await door.made(
        STOCK, {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 4}}}
    )
    assert (await door.made(STOCK, method="GET")) == stored
    await door.made("/traits/CUSTOM_A")
    for generation, (path, members) in enumerate((("traits", "CUSTOM_A"), ("aggregates", uid(1, "e"))), 1):
        body = {path: [members], "resource_provider_generation": generation}
        changed = await door.made(f"/resource_providers/{A}/{path}", body)
        assert changed["resource_provider_generation"] == generation + 1
    await door.made("/resource_classes/CUSTOM_X")
    assert (await door.made("/resource_classes", method="GET"))["resource_classes"][-1]["name"] == "CUSTOM_X"
    assert (await door.made(f"/resource_providers/{A}", {"name": "m"}))["name"] == "m"
    assert (await door("DELETE", f"/resource_providers/{A}")).status_code == 204
    assert error_of(await door("GET", f"/resource_providers/{A}"))[0] == 404


async def test_usages_of_a_project_by_consumer_type(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    await door.made(f"/allocations/{uid(2)}", claim_in_json((A, {"VCPU": 2}), kind="MIGRATION"))
    assert (await door.made("/usages?project_id=p1", method="GET"))["usages"] == {
        "INSTANCE": {"VCPU": 1, "consumer_count": 1},
        "MIGRATION": {"VCPU": 2, "consumer_count": 1},
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 10**20})), 409),
        ("PUT", STOCK, {"resource_provider_generation": 10**30, "inventories": {}}, 409),
        ("PUT", "/allocations/c1-2", claim_in_json((A, {"VCPU": 1})), 400),
        ("GET", "/traits/CUSTOM_%00", None, 404),
        ("GET", "/allocations/%00", None, 404),
        ("GET", "/resource_providers/%00", None, 404),
    ],
)
async def test_numbers_and_names_that_no_table_can_hold_are_refused(
    near: HttpPlacement, method: str, path: str, body: Any, status: int
) -> None:
    await near.provider(A, VCPU=8)
    assert (await near(method, path, body)).status_code == status
