"""Allocations, usages, reshaping and candidates through the HTTP door: stories and refusals."""

import asyncio
from typing import Any

import pytest

from bus.claims import ReleaseRequested
from tests.support.http_placement import HttpPlacement, claim_in_json, error_of
from tests.support.ids import uid

A, B = uid(1, "a"), uid(2, "a")
STOCK = f"/resource_providers/{A}/inventories"
HELD = "placement.concurrent_update"
UNDEFINED = "placement.undefined_code"


# Allocations


async def test_what_a_consumer_holds_by_version(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    at = f"/allocations/{uid(1)}"
    await door.made(at, claim_in_json((A, {"VCPU": 2})))
    shares = {A: {"resources": {"VCPU": 2}, "generation": 2}}
    owner = {"project_id": "p1", "user_id": "u1"}
    for minor, told in (
        (0, {"allocations": shares}),
        (12, {"allocations": shares, **owner}),
        (28, {"allocations": shares, **owner, "consumer_generation": 1}),
        (38, {"allocations": shares, **owner, "consumer_generation": 1, "consumer_type": "INSTANCE"}),
    ):
        assert (await door.made(at, method="GET", minor=minor)) == told
    assert (await door.made(f"/resource_providers/{A}/allocations", method="GET")) == {
        "resource_provider_generation": 2,
        "allocations": {uid(1): {"resources": {"VCPU": 2}, "consumer_generation": 1}},
    }
    assert (await door.made(f"/resource_providers/{A}/usages", method="GET")) == {
        "resource_provider_generation": 2,
        "usages": {"VCPU": 2},
    }


@pytest.mark.parametrize(
    ("minor", "body", "held"),
    [
        (
            0,
            {"allocations": [{"resource_provider": {"uuid": A}, "resources": {"VCPU": 1}}]},
            ("00000000-0000-0000-0000-000000000000", "unknown"),
        ),
        (
            8,
            {
                "allocations": [{"resource_provider": {"uuid": A}, "resources": {"VCPU": 1}}],
                "project_id": "p",
                "user_id": "u",
            },
            ("p", "unknown"),
        ),
        (
            12,
            {"allocations": {A: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u"},
            ("p", "unknown"),
        ),
        (
            28,
            {
                "allocations": {A: {"resources": {"VCPU": 1.0}, "generation": 7}},
                "project_id": "p",
                "user_id": "u",
                "consumer_generation": None,
            },
            ("p", "unknown"),
        ),
        (
            34,
            {
                "allocations": {A: {"resources": {"VCPU": 1}}},
                "project_id": "p",
                "user_id": "u",
                "consumer_generation": None,
                "mappings": {"1": [A]},
            },
            ("p", "unknown"),
        ),
        (
            38,
            {
                "allocations": {A: {"resources": {"VCPU": 1}}},
                "project_id": "p",
                "user_id": "u",
                "consumer_generation": None,
                "consumer_type": "MIGRATION",
            },
            ("p", "MIGRATION"),
        ),
    ],
)
async def test_how_a_version_claims(
    near: HttpPlacement, minor: int, body: Any, held: tuple[str, str]
) -> None:
    await near.provider(A, VCPU=8)
    assert (
        await near("PUT", f"/allocations/{uid(1).replace('-', '')}", body, minor=minor)
    ).status_code == 204
    told = await near.made(f"/allocations/{uid(1)}", method="GET")
    assert told["allocations"][A]["resources"] == {"VCPU": 1}
    assert (told["project_id"], told["consumer_type"]) == held


async def test_before_1_28_whatever_is_held_is_replaced_and_keeps_its_type(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1}), kind="MIGRATION"))
    body = {"allocations": {A: {"resources": {"VCPU": 3}}}, "project_id": "p2", "user_id": "u"}
    assert (await door("PUT", f"/allocations/{uid(1)}", body, minor=12)).status_code == 204
    told = await door.made(f"/allocations/{uid(1)}", method="GET")
    assert told["allocations"][A]["resources"] == {"VCPU": 3}
    assert (told["project_id"], told["consumer_type"], told["consumer_generation"]) == ("p2", "MIGRATION", 2)


async def test_a_consumers_generation_fences(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    at = f"/allocations/{uid(1)}"
    for given, expected in ((5, "expected null but got 5"), (0, "expected null but got 0")):
        error = error_of(await door("PUT", at, claim_in_json((A, {"VCPU": 1}), generation=given)))
        assert error[:2] == (409, HELD)
        assert f"consumer generation conflict - {expected}" in error[2]
    await door.made(at, claim_in_json((A, {"VCPU": 1})))
    error = error_of(await door("PUT", at, claim_in_json((A, {"VCPU": 1}))))
    assert "expected 1 but got None" in error[2]
    await door.made(at, claim_in_json(generation=1))
    assert (await door.made(at, method="GET")) == {"allocations": {}}
    await door.made(at, claim_in_json((A, {"VCPU": 1})))  # nothing was left behind


async def test_nothing_is_left_of_a_claim_of_nothing(door: HttpPlacement) -> None:
    at = f"/allocations/{uid(1)}"
    for _ in range(2):
        assert (await door("PUT", at, claim_in_json())).status_code == 204
    nobody = claim_in_json((B, {"VCPU": 1}))
    for _ in range(2):
        assert error_of(await door("PUT", at, nobody))[0] == 400


@pytest.mark.parametrize(
    ("resources", "status", "says"),
    [
        ({"VCPU": 9}, 409, "The requested amount would exceed the capacity"),
        ({"VCPU": 10**20}, 409, "Unable to allocate inventory: Unable to create allocation"),
        ({"PCI_DEVICE": 1}, 409, f"Inventory for 'PCI_DEVICE' on resource provider '{A}'"),
        ({"CUSTOM_PONY": 1}, 400, "No such resource class CUSTOM_PONY"),
        ({"VCPU": 0}, 400, "0 is less than the minimum of 1"),
        ({}, 400, "(should be non-empty)|(does not have enough properties)"),
    ],
)
async def test_claims_refused(near: HttpPlacement, resources: dict[str, int], status: int, says: str) -> None:
    await near.provider(A, VCPU=8)
    error = error_of(await near("PUT", f"/allocations/{uid(1)}", claim_in_json((A, resources))))
    assert error[:2] == (status, UNDEFINED)
    assert any(one.strip("()") in error[2] for one in says.split("|"))


async def test_the_figures_of_a_refusal_are_in_a_header(near: HttpPlacement) -> None:
    """The sentence is the API's own, which clients match."""
    await near.provider(A, VCPU=8)
    inventory = {"resource_class": "MEMORY_MB", "total": 64, "max_unit": 8}
    await near.made(STOCK, inventory, method="POST")
    for resources, says in (({"VCPU": 9}, "asked 9, free 8"), ({"MEMORY_MB": 9}, "9 breaks its max_unit")):
        refusal = await near("PUT", f"/allocations/{uid(1)}", claim_in_json((A, resources)))
        assert (refusal.status_code, refusal.headers["berth-why"]) == (409, says)


async def test_what_does_not_exist_counts_for_more_than_room(near: HttpPlacement) -> None:
    await near.provider(A, VCPU=8)
    shares = ((A, {"VCPU": 9}), (B, {"VCPU": 1}))
    error = error_of(await near("PUT", f"/allocations/{uid(1)}", claim_in_json(*shares)))
    assert error[0] == 400
    assert f"Allocation for resource provider '{B}' that does not exist" in error[2]
    error = error_of(await near("PUT", f"/allocations/{uid(1)}", claim_in_json(*shares, generation=3)))
    assert error[:2] == (409, HELD)


async def test_from_1_28_on_a_generation_fences(near: HttpPlacement) -> None:
    await near.provider(A, VCPU=8)
    body = claim_in_json((A, {"VCPU": 1}), generation=3)
    del body["consumer_type"]
    assert error_of(await near("PUT", f"/allocations/{uid(1)}", body, minor=28))[:2] == (409, HELD)


@pytest.mark.parametrize(
    ("stock", "asked"), [({"min_unit": 2}, 1), ({"max_unit": 3}, 4), ({"step_size": 2}, 3)]
)
async def test_units_are_kept(near: HttpPlacement, stock: dict[str, int], asked: int) -> None:
    await near.provider(A)
    body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8} | stock}}
    await near.made(STOCK, body)
    error = error_of(await near("PUT", f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": asked}))))
    assert error[:2] == (409, UNDEFINED)
    assert "would violate inventory constraints" in error[2]


@pytest.mark.parametrize("path", ["/allocations/cow", "/allocations/c1-2"])
async def test_a_consumer_is_a_uuid(near: HttpPlacement, path: str) -> None:
    await near.provider(A, VCPU=8)
    error = error_of(await near("PUT", path, claim_in_json((A, {"VCPU": 1}))))
    assert (error[0], "Malformed consumer_uuid" in error[2]) == (400, True)
    assert (await near.made(path, method="GET")) == {"allocations": {}}
    assert (await near("DELETE", path)).status_code == 404


async def test_deleting_asks_for_no_generation_and_moves_none(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    assert (await door("DELETE", f"/allocations/{uid(1)}")).status_code == 204
    assert (await door.made(f"/resource_providers/{A}", method="GET"))["generation"] == 2
    error = error_of(await door("DELETE", f"/allocations/{uid(1)}"))
    assert (error[0], f"No allocations for consumer '{uid(1)}'" in error[2]) == (404, True)


async def test_several_claims_are_taken_together_or_not_at_all(door: HttpPlacement) -> None:
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


async def test_many_claims_at_once_never_take_more_than_there_is(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=20)
    body = claim_in_json((A, {"VCPU": 1}))
    answers = await asyncio.gather(*(door("PUT", f"/allocations/{uid(n)}", body) for n in range(50)))
    assert sorted(answer.status_code for answer in answers) == [204] * 20 + [409] * 30
    assert (await door.made(f"/resource_providers/{A}/usages", method="GET"))["usages"] == {"VCPU": 20}


async def test_a_consumer_that_has_ended_holds_nothing_that_could_be_deleted(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    at = f"/allocations/{uid(1)}"
    await door.made(at, claim_in_json((A, {"VCPU": 1})))
    end = ReleaseRequested(consumer=uid(1), generation=None, fenced=False, retire="deleted")
    await door.placement.claims.release_many([end])
    refusal = await door("DELETE", at)
    assert error_of(refusal)[0] == 404
    assert f"No allocations for consumer '{uid(1)}'" in refusal.text
    assert refusal.headers["berth-why"] == "deleted"


async def test_what_is_held_keeps_its_provider_and_inventory(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    error = error_of(await door("DELETE", f"/resource_providers/{A}"))
    assert error[:2] == (409, "placement.resource_provider.inuse")
    assert f"Unable to delete resource provider {A}: Resource provider has allocations." in error[2]
    gone = {"resource_provider_generation": 2, "inventories": {"DISK_GB": {"total": 1}}}
    error = error_of(await door("PUT", STOCK, gone))
    assert error[:2] == (409, "placement.inventory.inuse")
    assert error[2].endswith(f"update conflict: Inventory for 'VCPU' on resource provider '{A}' in use.")
    assert error_of(await door("DELETE", f"{STOCK}/VCPU"))[:2] == (409, HELD)
    assert error_of(await door("DELETE", STOCK))[:2] == (409, "placement.inventory.inuse")


# Usages


async def test_what_a_project_uses(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    await door.made(f"/allocations/{uid(2)}", claim_in_json((A, {"VCPU": 2}), kind="MIGRATION"))
    await door.made(f"/allocations/{uid(3)}", claim_in_json((A, {"VCPU": 4}), project="p2"))
    for query, minor, usages in (
        ("project_id=p1", 37, {"VCPU": 3}),
        ("project_id=p1&user_id=nobody", 37, {}),
        (
            "project_id=p1",
            38,
            {"INSTANCE": {"VCPU": 1, "consumer_count": 1}, "MIGRATION": {"VCPU": 2, "consumer_count": 1}},
        ),
        ("project_id=p1&consumer_type=MIGRATION", 38, {"MIGRATION": {"VCPU": 2, "consumer_count": 1}}),
        ("project_id=p1&consumer_type=all", 38, {"all": {"VCPU": 3, "consumer_count": 2}}),
        ("project_id=p1&consumer_type=unknown", 38, {}),
        ("project_id=p1&consumer_type=ALL", 38, {}),
    ):
        assert (await door.made(f"/usages?{query}", method="GET", minor=minor)) == {"usages": usages}


# Reshaper


async def test_reshaping_moves_inventory_with_what_is_held_of_it(door: HttpPlacement) -> None:
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


@pytest.mark.parametrize(
    ("change", "status", "code", "says"),
    [
        ({"generation": 3}, 409, HELD, "actual: 1, given: 3"),
        ({"provider": B}, 400, "placement.resource_provider.not_found", B),
        ({"resource_class": "COW"}, 400, UNDEFINED, "No such resource class COW"),
        ({"consumer_generation": 7}, 409, HELD, "consumer generation conflict - expected null but got 7"),
        ({"amount": 9}, 409, UNDEFINED, "Unable to allocate inventory"),
    ],
)
async def test_reshaping_refused(
    near: HttpPlacement, change: dict[str, Any], status: int, code: str, says: str
) -> None:
    await near.provider(A, VCPU=8)
    inventories = {change.get("resource_class", "VCPU"): {"total": 8}}
    body = {
        "inventories": {
            change.get("provider", A): {
                "resource_provider_generation": change.get("generation", 1),
                "inventories": inventories,
            }
        },
        "allocations": {
            uid(1): claim_in_json(
                (A, {"VCPU": change.get("amount", 1)}), generation=change.get("consumer_generation")
            )
        },
    }
    error = error_of(await near("POST", "/reshaper", body))
    assert error[:2] == (status, code)
    assert says in error[2]
    assert (await near.made(f"/resource_providers/{A}/usages", method="GET"))["usages"] == {"VCPU": 0}


# Candidates


async def test_candidates_by_version(near: HttpPlacement) -> None:
    await near.provider(A, VCPU=8, DISK_GB=100)
    query = "/allocation_candidates?resources=VCPU:1"
    summary = {"VCPU": {"capacity": 8, "used": 0}}
    for minor, request, told in (
        (10, {"allocations": [{"resource_provider": {"uuid": A}, "resources": {"VCPU": 1}}]}, summary),
        (12, {"allocations": {A: {"resources": {"VCPU": 1}}}}, summary),
        (26, {"allocations": {A: {"resources": {"VCPU": 1}}}}, summary),
        (
            27,
            {"allocations": {A: {"resources": {"VCPU": 1}}}},
            summary | {"DISK_GB": {"capacity": 100, "used": 0}},
        ),
        (
            34,
            {"allocations": {A: {"resources": {"VCPU": 1}}}, "mappings": {"": [A]}},
            summary | {"DISK_GB": {"capacity": 100, "used": 0}},
        ),
    ):
        found = await near.made(query, method="GET", minor=minor)
        assert found["allocation_requests"] == [request]
        [(uuid, one)] = found["provider_summaries"].items()
        assert (uuid, one["resources"]) == (A, told)
        assert ("traits" in one) is (minor >= 17)
        assert ("root_provider_uuid" in one) is (minor >= 29)


async def test_from_1_29_on_whole_trees_are_told(near: HttpPlacement) -> None:
    await near.provider(A, VCPU=8)
    await near.provider(B, parent=A, DISK_GB=8)
    for query, told in (
        ("VCPU:1", {28: {A}, 29: {A, B}}),
        ("VCPU:1,DISK_GB:1", {28: set(), 29: {A, B}}),
    ):
        for minor, uuids in told.items():
            found = await near.made(f"/allocation_candidates?resources={query}", method="GET", minor=minor)
            assert set(found["provider_summaries"]) == uuids


async def test_a_candidate_can_be_claimed_as_it_is_told(door: HttpPlacement) -> None:
    await door.provider(A, VCPU=8)
    await door.provider(B, parent=A, DISK_GB=8)
    found = await door.made("/allocation_candidates?resources=VCPU:1,DISK_GB:2", method="GET")
    [request] = found["allocation_requests"]
    body = claim_in_json() | request
    assert (await door("PUT", f"/allocations/{uid(1)}", body)).status_code == 204
    found = await door.made("/allocation_candidates?resources=VCPU:1", method="GET")
    assert found["provider_summaries"][B]["resources"]["DISK_GB"] == {"capacity": 8, "used": 2}
    assert found["provider_summaries"][B]["parent_provider_uuid"] == A


async def test_candidates_know_what_was_written_a_moment_ago(door: HttpPlacement) -> None:
    query = "/allocation_candidates?resources=VCPU:8"
    await door.provider(A, VCPU=8)
    assert len((await door.made(query, method="GET"))["allocation_requests"]) == 1
    await door.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    assert (await door.made(query, method="GET")) == {"allocation_requests": [], "provider_summaries": {}}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("resources=COW:1", "No such resource class COW"),
        ("resources=VCPU:1&required=COW", "No such trait(s): COW."),
    ],
)
async def test_candidates_ask_for_what_exists(near: HttpPlacement, query: str, says: str) -> None:
    error = error_of(await near("GET", f"/allocation_candidates?{query}"))
    assert (error[0], says in error[2]) == (400, True)
