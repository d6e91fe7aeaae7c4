"""Providers, inventories, traits, aggregates and classes through the HTTP door: stories and refusals."""

from typing import Any

import pytest

from tests.support.http_placement import HttpPlacement, error_of
from tests.support.ids import uid

A, B, C = (uid(number, "a") for number in (1, 2, 3))
HELD = "placement.concurrent_update"
DUPLICATE, UNDEFINED = "placement.duplicate_name", "placement.undefined_code"


# Providers


async def test_a_providers_life(door: HttpPlacement) -> None:
    made = await door("POST", "/resource_providers", {"name": "n", "uuid": A.replace("-", "").upper()})
    assert made.status_code == 200
    assert made.headers["location"] == f"http://placement/resource_providers/{A}"
    one = made.json()
    assert {name: one[name] for name in one if name != "links"} == {
        "uuid": A,
        "name": "n",
        "generation": 0,
        "parent_provider_uuid": None,
        "root_provider_uuid": A,
    }
    assert (await door.made("/resource_providers", method="GET")) == {"resource_providers": [one]}
    renamed = await door("PUT", f"/resource_providers/{A}", {"name": "m"})
    assert renamed.json() == one | {"name": "m"}
    assert "location" not in renamed.headers
    assert (await door("DELETE", f"/resource_providers/{A}")).status_code == 204
    assert error_of(await door("GET", f"/resource_providers/{A}"))[0] == 404


@pytest.mark.parametrize(
    ("minor", "links", "keys"),
    [
        (0, ["self", "inventories", "usages"], 4),
        (1, ["self", "inventories", "usages", "aggregates"], 4),
        (6, ["self", "inventories", "usages", "aggregates", "traits"], 4),
        (11, ["self", "inventories", "usages", "aggregates", "traits", "allocations"], 4),
        (14, ["self", "inventories", "usages", "aggregates", "traits", "allocations"], 6),
    ],
)
async def test_what_a_version_shows_of_a_provider(
    near: HttpPlacement, minor: int, links: list[str], keys: int
) -> None:
    await near.provider(A)
    one = await near.made(f"/resource_providers/{A}", method="GET", minor=minor)
    assert [link["rel"] for link in one["links"]] == links
    assert one["links"][1]["href"] == f"/resource_providers/{A}/inventories"
    assert len(one) == keys


async def test_before_1_20_a_new_provider_is_only_told_where_it_is(near: HttpPlacement) -> None:
    made = await near("POST", "/resource_providers", {"name": "n", "uuid": A}, minor=19)
    assert (made.status_code, made.content) == (201, b"")
    assert "content-type" not in made.headers


async def test_parents(door: HttpPlacement) -> None:
    for uuid, parent in ((A, None), (B, A), (C, B)):
        await door.provider(uuid, parent=parent)
    at = f"/resource_providers/{B}"
    assert (await door.made(f"/resource_providers/{C}", method="GET"))["root_provider_uuid"] == A

    refused = await door("PUT", at, {"name": "b", "parent_provider_uuid": None}, minor=36)
    assert error_of(refused)[0] == 400
    assert "un-parenting a provider is not currently allowed" in refused.text
    refused = await door("PUT", at, {"name": "b", "parent_provider_uuid": C})
    assert "creating loop in the provider tree is not allowed." in refused.text
    refused = await door("DELETE", at)
    assert error_of(refused)[:2] == (409, "placement.resource_provider.cannot_delete_parent")

    freed = await door("PUT", at, {"name": "b", "parent_provider_uuid": None})
    assert freed.json()["root_provider_uuid"] == B
    assert (await door.made(f"/resource_providers/{C}", method="GET"))["root_provider_uuid"] == B
    found = await door.made(f"/resource_providers?in_tree={C}", method="GET")
    assert {one["uuid"] for one in found["resource_providers"]} == {B, C}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        ("POST", "/resource_providers", {"name": A}, 409, DUPLICATE, f"name: {A} already exists"),
        (
            "POST",
            "/resource_providers",
            {"name": "x", "uuid": A},
            409,
            DUPLICATE,
            f"uuid: {A} already exists",
        ),
        ("POST", "/resource_providers", {"name": ""}, 400, UNDEFINED, "name is required"),
        (
            "POST",
            "/resource_providers",
            {"name": "child", "uuid": C, "parent_provider_uuid": uid(9, "a")},
            400,
            UNDEFINED,
            f'Unable to create resource provider "child", {C}: Object action create failed because: parent'
            " provider UUID does not exist",
        ),
        (
            "POST",
            "/resource_providers",
            {"name": "child", "uuid": C, "parent_provider_uuid": C},
            400,
            UNDEFINED,
            "parent provider UUID cannot be same as UUID",
        ),
        ("PUT", f"/resource_providers/{A}", {"name": B}, 409, DUPLICATE, f"{B} already exists"),
        ("PUT", f"/resource_providers/{C}", {"name": "x"}, 404, UNDEFINED, f"with uuid {C} found"),
        ("PUT", f"/resource_providers/{C}", {}, 404, UNDEFINED, f"with uuid {C} found"),
        ("PUT", f"/resource_providers/{A}", {}, 400, UNDEFINED, "'name' is a required property"),
        ("DELETE", f"/resource_providers/{C}", None, 404, UNDEFINED, "found for delete"),
        ("GET", "/resource_providers?resources=COW:1", None, 400, UNDEFINED, "No such resource class COW"),
        ("GET", "/resource_providers?required=COW", None, 400, UNDEFINED, "No such trait(s): COW."),
    ],
)
async def test_providers_refused(
    near: HttpPlacement, method: str, path: str, body: Any, status: int, code: str, says: str
) -> None:
    await near.provider(A)
    await near.provider(B)
    error = error_of(await near(method, path, body))
    assert error[:2] == (status, code)
    assert says in error[2]


# Inventories


async def test_inventories_and_their_generations(door: HttpPlacement) -> None:
    await door.provider(A)
    at = f"/resource_providers/{A}/inventories"
    added = await door("POST", at, {"resource_class": "VCPU", "total": 8})
    assert (added.status_code, added.headers["location"]) == (201, f"http://placement{at}/VCPU")
    full = {
        "total": 8,
        "reserved": 0,
        "min_unit": 1,
        "max_unit": 2**31 - 1,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }
    assert added.json() == full | {"resource_provider_generation": 1}

    body = {"resource_provider_generation": 1, "inventories": {"VCPU": {"total": 4}, "DISK_GB": {"total": 9}}}
    told = await door.made(at, body)
    assert told["resource_provider_generation"] == 2
    assert told["inventories"]["VCPU"] == full | {"total": 4}
    assert (await door.made(at, method="GET")) == told

    changed = await door.made(f"{at}/VCPU", {"total": 5, "resource_provider_generation": 2})
    assert changed == full | {"total": 5, "resource_provider_generation": 3}
    assert (await door("DELETE", f"{at}/VCPU")).status_code == 204
    for generation in (5, 6):
        assert (await door("DELETE", at)).status_code == 204
        assert (await door.made(at, method="GET")) == {
            "resource_provider_generation": generation,
            "inventories": {},
        }


STOCK = f"/resource_providers/{A}/inventories"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        (
            "PUT",
            STOCK,
            {"resource_provider_generation": 0, "inventories": {}},
            409,
            HELD,
            "provider generation conflict",
        ),
        (
            "PUT",
            STOCK,
            {"resource_provider_generation": 10**30, "inventories": {}},
            409,
            HELD,
            "generation conflict",
        ),
        (
            "PUT",
            STOCK,
            {"resource_provider_generation": 1, "inventories": {"COW": {"total": 1}}},
            400,
            "",
            "Unknown resource class in inventory",
        ),
        (
            "PUT",
            STOCK,
            {"resource_provider_generation": 1, "inventories": {"VCPU": {"total": 1, "reserved": 2}}},
            400,
            "",
            f"Unable to update inventory for resource provider {A}: Invalid inventory for 'VCPU'",
        ),
        ("PUT", STOCK, {"inventories": {}}, 400, "", "'resource_provider_generation' is a required property"),
        ("POST", STOCK, {"resource_class": "VCPU", "total": 1}, 409, HELD, "Update conflict"),
        (
            "POST",
            STOCK,
            {"resource_class": "COW", "total": 1},
            400,
            "",
            "Unable to create inventory for resource",
        ),
        (
            "POST",
            STOCK,
            {"resource_class": "DISK_GB", "total": 1, "reserved": 2},
            400,
            "",
            "greater than total",
        ),
        (
            "POST",
            STOCK,
            {"resource_class": "DISK_GB", "total": 0},
            400,
            "",
            "0 is less than the minimum of 1",
        ),
        (
            "PUT",
            f"{STOCK}/VCPU",
            {"total": 1, "resource_provider_generation": 0},
            409,
            HELD,
            "generation conflict",
        ),
        (
            "PUT",
            f"{STOCK}/DISK_GB",
            {"total": 1, "resource_provider_generation": 1},
            400,
            "",
            "No inventory record with resource class",
        ),
        (
            "PUT",
            f"{STOCK}/COW",
            {"total": 1, "resource_provider_generation": 1},
            404,
            "",
            "No such resource class COW",
        ),
        ("GET", f"{STOCK}/DISK_GB", None, 404, "", f"No inventory of class DISK_GB for {A}"),
        ("GET", f"{STOCK}/COW", None, 404, "", f"No inventory of class COW for {A}"),
        ("DELETE", f"{STOCK}/DISK_GB", None, 404, "", "No inventory of class DISK_GB found for delete"),
        ("DELETE", f"{STOCK}/COW", None, 404, "", "No inventory of class COW found for delete"),
        (
            "PUT",
            STOCK.replace(A, B),
            {"inventories": []},
            404,
            "",
            f"No resource provider with uuid {B} found",
        ),
        (
            "PUT",
            STOCK.replace(A, B),
            {"resource_provider_generation": 0, "inventories": {"COW": {"total": 1}}},
            404,
            "",
            f"No resource provider with uuid {B} found",
        ),
        ("DELETE", STOCK.replace(A, B), None, 404, "", f"No resource provider with uuid {B} found"),
    ],
)
async def test_inventories_refused(
    near: HttpPlacement, method: str, path: str, body: Any, status: int, code: str, says: str
) -> None:
    await near.provider(A, VCPU=8)
    error = error_of(await near(method, path, body))
    assert error[:2] == (status, code or UNDEFINED)
    assert says in error[2]
    told = await near.made(STOCK, method="GET")
    assert told["resource_provider_generation"] == 1
    assert list(told["inventories"]) == ["VCPU"]


@pytest.mark.parametrize(("minor", "status"), [(25, 400), (26, 200)])
async def test_from_1_26_on_all_may_be_reserved(near: HttpPlacement, minor: int, status: int) -> None:
    await near.provider(A)
    body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8, "reserved": 8}}}
    answer = await near("PUT", STOCK, body, minor=minor)
    assert answer.status_code == status
    assert ("greater than or equal to total" in answer.text) is (status == 400)


# Traits and aggregates


async def test_traits_move_the_generation_only_when_the_set_changes(door: HttpPlacement) -> None:
    await door.provider(A)
    for name in ("CUSTOM_B", "CUSTOM_A"):
        await door.made(f"/traits/{name}")
    at = f"/resource_providers/{A}/traits"
    wanted = ["CUSTOM_A", "HW_CPU_X86_AVX", "CUSTOM_B"]
    for generation in (0, 1):
        told = await door.made(at, {"traits": wanted, "resource_provider_generation": generation})
        assert told["resource_provider_generation"] == 1
    assert told["traits"] == ["HW_CPU_X86_AVX", "CUSTOM_B", "CUSTOM_A"]
    stale = error_of(await door("PUT", at, {"traits": [], "resource_provider_generation": 0}))
    assert stale[:2] == (409, HELD)
    assert "Resource provider's generation already changed." in stale[2]
    in_use = error_of(await door("DELETE", "/traits/CUSTOM_A"))
    assert (in_use[0], "is in use by a resource provider." in in_use[2]) == (409, True)
    for _ in range(2):  # nothing is left to move it the second time
        assert (await door("DELETE", at)).status_code == 204
    assert (await door.made(at, method="GET")) == {"traits": [], "resource_provider_generation": 2}
    assert (await door("DELETE", "/traits/CUSTOM_A")).status_code == 204


async def test_aggregates_have_a_generation_from_1_19_on(door: HttpPlacement) -> None:
    await door.provider(A)
    at, groups = f"/resource_providers/{A}/aggregates", [uid(2, "e"), uid(1, "e")]
    assert (await door.made(at, groups, minor=18)) == {"aggregates": groups}
    for generation in (0, 1):
        body = {"aggregates": groups, "resource_provider_generation": generation}
        told = await door.made(at, body, minor=19)
        assert told == {"aggregates": groups, "resource_provider_generation": generation + 1}
    stale = await door("PUT", at, {"aggregates": [], "resource_provider_generation": 0})
    assert error_of(stale)[:2] == (409, HELD)
    nobody = await door("PUT", at.replace(A, B), {"aggregates": 5})
    assert error_of(nobody)[0] == 404


# Names


async def test_resource_classes(door: HttpPlacement) -> None:
    made = await door("POST", "/resource_classes", {"name": "CUSTOM_X"}, minor=2)
    assert (made.status_code, made.headers["location"]) == (201, "http://placement/resource_classes/CUSTOM_X")
    assert (await door.made("/resource_classes/CUSTOM_X", method="GET")) == {
        "name": "CUSTOM_X",
        "links": [{"rel": "self", "href": "/resource_classes/CUSTOM_X"}],
    }
    again = error_of(await door("POST", "/resource_classes", {"name": "CUSTOM_X"}))
    assert (again[0], "Conflicting resource class already exists" in again[2]) == (409, True)
    renamed = await door("PUT", "/resource_classes/CUSTOM_X", {"name": "CUSTOM_Y"}, minor=6)
    assert renamed.json()["name"] == "CUSTOM_Y"
    for path, status in (("CUSTOM_Y", 204), ("CUSTOM_Z", 201)):
        assert (await door("PUT", f"/resource_classes/{path}", minor=7)).status_code == status
    clash = error_of(await door("PUT", "/resource_classes/CUSTOM_Y", {"name": "CUSTOM_Z"}, minor=6))
    assert (clash[0], "Resource class already exists" in clash[2]) == (409, True)
    names = [one["name"] for one in (await door.made("/resource_classes", method="GET"))["resource_classes"]]
    assert names[0] == "VCPU"
    assert {"CUSTOM_Y", "CUSTOM_Z"} < set(names)
    assert (await door("DELETE", "/resource_classes/CUSTOM_Y")).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "minor", "status", "says"),
    [
        ("POST", "/resource_classes", {"name": "X"}, 2, 400, "Failed validating 'pattern'"),
        ("PUT", "/resource_classes/X", None, 7, 400, "Failed validating 'pattern'"),
        ("PUT", "/resource_classes/CUSTOM_" + "X" * 250, None, 7, 400, "Failed validating 'maxLength'"),
        (
            "PUT",
            "/resource_classes/VCPU",
            {"name": "CUSTOM_X"},
            6,
            400,
            "Cannot update standard resource class",
        ),
        (
            "PUT",
            "/resource_classes/CUSTOM_N",
            {"name": "CUSTOM_X"},
            6,
            404,
            "No such resource class CUSTOM_N",
        ),
        ("DELETE", "/resource_classes/VCPU", None, 39, 400, "Cannot delete standard resource class"),
        ("DELETE", "/resource_classes/CUSTOM_N", None, 39, 404, "No such resource class CUSTOM_N"),
        ("GET", "/resource_classes/CUSTOM_N", None, 39, 404, "No such resource class CUSTOM_N"),
        ("PUT", "/traits/T", None, 39, 400, "The trait is invalid."),
        ("PUT", "/traits/CUSTOM_" + "X" * 250, None, 39, 400, "The trait is invalid."),
        ("GET", "/traits/CUSTOM_N", None, 39, 404, "No such trait(s): CUSTOM_N."),
        ("DELETE", "/traits/CUSTOM_N", None, 39, 404, "No such trait(s): CUSTOM_N."),
        ("DELETE", "/traits/HW_CPU_X86_AVX", None, 39, 400, "Cannot delete standard trait"),
    ],
)
async def test_names_refused(
    near: HttpPlacement, method: str, path: str, body: Any, minor: int, status: int, says: str
) -> None:
    answer = await near(method, path, body, minor=minor)
    assert answer.status_code == status
    assert says in answer.text
