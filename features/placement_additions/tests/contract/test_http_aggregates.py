"""`/berth/aggregates` over HTTP: aggregates with names, metadata and hosts."""

from typing import Any

import pytest

from bus.aggregates import AggregateEditAnswered, AggregateEditRequested
from bus.vocabulary import Contended
from tests.support.aggregates import EAST, WEST, has_hosts, host, make
from tests.support.http_placement import HttpPlacement, claim_in_json, error_of
from tests.support.ids import uid

HERE = "/berth/aggregates"
UNDEFINED = "placement.undefined_code"
CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
ZONE = {"availability_zone": "e"}


async def test_an_aggregate_is_created_read_changed_and_deleted(near: HttpPlacement) -> None:
    await has_hosts(near.placement)
    made = await near("POST", HERE, {"name": "east", "uuid": EAST, "metadata": ZONE, "hosts": ["host-1"]})
    assert made.status_code == 201
    assert made.headers["location"] == f"http://placement{HERE}/{EAST}"
    sent = {"uuid": EAST, "name": "east", "metadata": ZONE}
    assert made.json() == {**sent, "added": [host(1)], "removed": [], "warnings": []}
    again = await near("POST", HERE, {"name": "east", "uuid": EAST, "metadata": ZONE, "hosts": ["host-1"]})
    assert (again.status_code, again.json()["added"]) == (200, [])

    for address in (EAST, EAST.upper(), "east"):
        shown = await near("GET", f"{HERE}/{address}")
        assert shown.json() == {**sent, "host_count": 1, "hosts": [{"uuid": host(1), "name": "host-1"}]}
    put = await near("PUT", f"{HERE}/east/hosts/{host(2)}")
    assert (put.status_code, put.json()["added"]) == (200, [host(2)])
    assert (await near("PUT", f"{HERE}/east/hosts/host-2")).json()["added"] == []
    assert (await near("GET", HERE)).json() == {"aggregates": [{**sent, "host_count": 2}], "more": False}
    inside = (await near("GET", f"/resource_providers?member_of={EAST}")).json()["resource_providers"]
    assert {one["uuid"] for one in inside} == {host(1), host(2)}

    taken = await near("DELETE", f"{HERE}/{EAST}/hosts/host-1")
    assert taken.json()["removed"] == [host(1)]
    body: dict[str, Any] = {
        "name": "orient",
        "metadata": {"availability_zone": None, "cpu_weight_multiplier": "x", "ssd": "true"},
        "add": ["host-3"],
        "remove": ["host-2"],
    }
    changed = (await near("PATCH", f"{HERE}/east", body)).json()
    assert (changed["name"], changed["added"], changed["removed"]) == ("orient", [host(3)], [host(2)])
    assert changed["metadata"] == {"cpu_weight_multiplier": "x", "ssd": "true"}
    assert changed["warnings"] == ["cpu_weight_multiplier: 'x' is no number, and is passed over"]

    assert (await near("DELETE", f"{HERE}/orient")).status_code == 409
    assert (await near("DELETE", f"{HERE}/orient?force=true")).status_code == 204
    assert (await near("GET", f"{HERE}/{EAST}")).status_code == 404
    assert (await near("GET", HERE)).json() == {"aggregates": [], "more": False}


# `east` is a zone with host-1, which has an instance; `west` is another zone

REFUSED: list[tuple[str, str, Any, int, str, str]] = [
    ("GET", "/nowhere", None, 404, UNDEFINED, "There is no aggregate nowhere."),
    ("PATCH", "/east", {"name": "west"}, 409, DUPLICATE_NAME, "another aggregate has the name 'west'"),
    ("PUT", "/west/hosts/host-1", None, 409, UNDEFINED, "in zone 'w': it is in zone 'e' by aggregate east"),
    ("DELETE", "/east?hard=true", None, 400, UNDEFINED, "'hard' is not a parameter here; there are: force"),
    ("GET", "?colour=red", None, 400, UNDEFINED, "'colour' is not a parameter here"),
    ("GET", "?limit=0", None, 400, UNDEFINED, "limit: a number from 1 to 10000, not '0'"),
    ("POST", "", {}, 400, UNDEFINED, "name: the field is missing"),
    ("POST", "", {"name": "x", "metadata": {"a": 1}}, 400, UNDEFINED, "metadata"),
    ("POST", "", {"name": "x\0"}, 400, UNDEFINED, "U+0000"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code", "why"), REFUSED)
async def test_an_invalid_aggregate_edit_is_refused_with_the_reason(
    near: HttpPlacement, method: str, path: str, body: Any, status: int, code: str, why: str
) -> None:
    await has_hosts(near.placement, 1)
    await make(near.placement, EAST, "east", "host-1", **ZONE)
    await make(near.placement, WEST, "west", availability_zone="w")
    await near.made(f"/allocations/{uid(1)}", claim_in_json((host(1), {"VCPU": 1})))
    before = (await near("GET", HERE)).json()
    refusal = error_of(await near(method, HERE + path, body))
    assert (refusal[0], refusal[1]) == (status, code)
    assert why in refusal[2]
    assert (await near("GET", HERE)).json() == before


async def test_an_edit_that_always_loses_the_race_is_a_conflict(
    near: HttpPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def contended(order: AggregateEditRequested) -> AggregateEditAnswered:
        return AggregateEditAnswered(result=Contended())

    monkeypatch.setattr(near.placement.aggregates, "edit", contended)
    assert error_of(await near("POST", HERE, {"name": "x"}))[:2] == (409, CONCURRENT_UPDATE)


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("GET", "", "list"),
        ("POST", "", "create"),
        ("GET", "/east", "show"),
        ("PATCH", "/east", "update"),
        ("DELETE", "/east", "delete"),
        ("PUT", "/east/hosts/h", "update"),
        ("DELETE", "/east/hosts/h", "update"),
    ],
)
async def test_each_operation_has_its_policy_rule(
    near: HttpPlacement, method: str, path: str, rule: str
) -> None:
    body: dict[str, Any] | None = {} if method in ("POST", "PATCH") else None
    answer = await near(method, HERE + path, body, token="somebody", x_roles="member")
    assert error_of(answer)[0] == 403
    assert f"berth:aggregates:{rule}" in answer.text
