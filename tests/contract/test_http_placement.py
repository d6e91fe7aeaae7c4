"""The Placement API on both databases: tests in addition to the published tests of Placement.

Those tests run on both databases, too (`make compliance`).
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from starlette.routing import Route

from berth.features import http_rules
from bus.aggregates import AggregateEditAnswered, AggregateEditRequested, ChangeAggregate
from bus.claims import ReleaseRequested
from bus.errors import Unavailable
from bus.vocabulary import Contended
from placement_worker.http.access import DEFAULTS, Headers, Identity
from placement_worker.http.app import Resource
from placement_worker.http.errors import BAD_VALUE, CONCURRENT_UPDATE, DUPLICATE_NAME, UNDEFINED
from tests.support.aggregates import EAST, WEST, done, has_hosts, host, make
from tests.support.http_placement import HttpPlacement, a_stream, an_api, claim_in_json, error_of
from tests.support.ids import uid

A, B = uid(1, "a"), uid(2, "a")
STOCK = f"/resource_providers/{A}/inventories"


async def test_a_refused_claim_has_the_figures_in_a_header(near: HttpPlacement) -> None:
    """The text of the error stays that of OpenStack Placement, because clients match it."""
    await near.provider(A, VCPU=8)
    inventory = {"resource_class": "MEMORY_MB", "total": 64, "max_unit": 8}
    await near.made(STOCK, inventory, method="POST")
    for resources, says in (({"VCPU": 9}, "asked 9, free 8"), ({"MEMORY_MB": 9}, "9 breaks its max_unit")):
        refusal = await near("PUT", f"/allocations/{uid(1)}", claim_in_json((A, resources)))
        assert (refusal.status_code, refusal.headers["berth-why"]) == (409, says)


async def test_deleting_allocations_of_a_retired_consumer_is_404_with_the_reason(api: HttpPlacement) -> None:
    await api.provider(A, VCPU=8)
    at = f"/allocations/{uid(1)}"
    await api.made(at, claim_in_json((A, {"VCPU": 1})))
    end = ReleaseRequested(consumer=uid(1), generation="any", retire="deleted")
    await api.placement.claims.release_many([end])
    refusal = await api("DELETE", at)
    assert error_of(refusal)[0] == 404
    assert f"No allocations for consumer '{uid(1)}'" in refusal.text
    assert refusal.headers["berth-why"] == "deleted"


async def test_candidates_include_the_latest_write(api: HttpPlacement) -> None:
    query = "/allocation_candidates?resources=VCPU:8"
    await api.provider(A, VCPU=8)
    assert len((await api.made(query, method="GET"))["allocation_requests"]) == 1
    await api.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 1})))
    assert (await api.made(query, method="GET")) == {"allocation_requests": [], "provider_summaries": {}}


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
async def test_numbers_and_names_beyond_the_limits_of_columns_are_refused(
    near: HttpPlacement, method: str, path: str, body: Any, status: int
) -> None:
    await near.provider(A, VCPU=8)
    assert (await near(method, path, body)).status_code == status


MEMORY = "sqlite+aiosqlite://"


def opened(**options: Any) -> AbstractAsyncContextManager[HttpPlacement]:
    return an_api(MEMORY, **options)


async def test_a_policy_is_checked_before_the_body(near: HttpPlacement) -> None:
    somebody: dict[str, Any] = {"token": "somebody"}
    for method, path, body in (
        ("POST", "/reshaper", {"inventories": []}),
        ("PUT", f"/allocations/{uid(1)}", {}),
        ("GET", "/usages", None),
        ("GET", f"/resource_providers/{uid(1, 'a')}", None),
    ):
        assert (await near(method, path, body, **somebody)).status_code == 403
    assert (await near("POST", "/reshaper", minor=29, **somebody)).status_code == 404
    assert (await near("POST", "/reshaper", **somebody)).status_code == 415


async def test_the_last_project_of_a_query_is_the_one_that_counts(near: HttpPlacement) -> None:
    path = "/usages?project_id=mine&project_id=yours"
    answer = await near("GET", path, token="u", x_roles="reader", x_project_id="mine")
    assert answer.status_code == 403


async def no_token_can_be_checked(headers: Headers) -> Identity | None:
    raise Unavailable("The other service is temporarily unavailable.")


async def test_a_request_whose_token_cannot_be_checked_may_be_repeated_later() -> None:
    async with opened(authenticate=no_token_can_be_checked) as near:
        answer = await near("GET", "/resource_providers")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "temporarily unavailable" in error_of(answer)[2]
        for path in ("/", "/healthz", "/metrics"):  # paths that need no token
            assert (await near("GET", path)).status_code == 200


HERE = "/berth/aggregates"
ZONE = {"availability_zone": "e"}


async def test_an_aggregate_is_created_read_changed_and_deleted(api: HttpPlacement) -> None:
    await has_hosts(api.placement)
    made = await api("POST", HERE, {"name": "east", "uuid": EAST, "metadata": ZONE, "hosts": ["host-1"]})
    assert made.status_code == 201
    assert made.headers["location"] == f"http://placement{HERE}/{EAST}"
    sent = {"uuid": EAST, "name": "east", "metadata": ZONE}
    assert made.json() == {**sent, "added": [host(1)], "removed": [], "warnings": []}
    again = await api("POST", HERE, {"name": "east", "uuid": EAST, "metadata": ZONE, "hosts": ["host-1"]})
    assert (again.status_code, again.json()["added"]) == (200, [])

    for address in (EAST, EAST.upper(), "east"):
        shown = await api("GET", f"{HERE}/{address}")
        assert shown.json() == {**sent, "host_count": 1, "hosts": [{"uuid": host(1), "name": "host-1"}]}
    put = await api("PUT", f"{HERE}/east/hosts/{host(2)}")
    assert (put.status_code, put.json()["added"]) == (200, [host(2)])
    assert (await api("PUT", f"{HERE}/east/hosts/host-2")).json()["added"] == []
    assert (await api("GET", HERE)).json() == {"aggregates": [{**sent, "host_count": 2}], "more": False}
    inside = (await api("GET", f"/resource_providers?member_of={EAST}")).json()["resource_providers"]
    assert {one["uuid"] for one in inside} == {host(1), host(2)}

    taken = await api("DELETE", f"{HERE}/{EAST}/hosts/host-1")
    assert taken.json()["removed"] == [host(1)]
    body: dict[str, Any] = {
        "name": "orient",
        "metadata": {"availability_zone": None, "cpu_weight_multiplier": "x", "ssd": "true"},
        "add": ["host-3"],
        "remove": ["host-2"],
    }
    changed = (await api("PATCH", f"{HERE}/east", body)).json()
    assert (changed["name"], changed["added"], changed["removed"]) == ("orient", [host(3)], [host(2)])
    assert changed["metadata"] == {"cpu_weight_multiplier": "x", "ssd": "true"}
    assert changed["warnings"] == ["cpu_weight_multiplier: 'x' is no number, and is passed over"]

    assert (await api("DELETE", f"{HERE}/orient")).status_code == 409
    assert (await api("DELETE", f"{HERE}/orient?force=true")).status_code == 204
    assert (await api("GET", f"{HERE}/{EAST}")).status_code == 404
    assert (await api("GET", HERE)).json() == {"aggregates": [], "more": False}


# `east` is a zone with host-1, which has an instance; `west` is another zone

REFUSED: list[tuple[str, str, Any, int, str, str]] = [
    ("GET", "/nowhere", None, 404, UNDEFINED, "There is no aggregate nowhere."),
    ("PATCH", "/east", {"name": "west"}, 409, DUPLICATE_NAME, "another aggregate has the name 'west'"),
    ("PUT", "/west/hosts/host-1", None, 409, UNDEFINED, "in zone 'w': it is in zone 'e' by aggregate east"),
    ("DELETE", "/east?hard=true", None, 400, UNDEFINED, "'hard' is not a parameter here; there are: force"),
    ("GET", "?colour=red", None, 400, UNDEFINED, "'colour' is not a parameter here"),
    ("GET", "?limit=0", None, 400, UNDEFINED, "limit: a number from 1 to 10000, not '0'"),
    ("POST", "", {}, 400, UNDEFINED, "`name`"),
    ("POST", "", {"name": "x", "metadata": {"a": 1}}, 400, UNDEFINED, "$.metadata"),
    ("POST", "", {"name": "x\0"}, 400, UNDEFINED, "U+0000"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code", "why"), REFUSED)
async def test_an_invalid_aggregate_edit_is_refused_with_the_reason(
    api: HttpPlacement, method: str, path: str, body: Any, status: int, code: str, why: str
) -> None:
    await has_hosts(api.placement, 1)
    await make(api.placement, EAST, "east", "host-1", **ZONE)
    await make(api.placement, WEST, "west", availability_zone="w")
    await api.made(f"/allocations/{uid(1)}", claim_in_json((host(1), {"VCPU": 1})))
    before = (await api("GET", HERE)).json()
    refusal = error_of(await api(method, HERE + path, body))
    assert (refusal[0], refusal[1]) == (status, code)
    assert why in refusal[2]
    assert (await api("GET", HERE)).json() == before


async def test_an_edit_that_always_loses_the_race_is_a_conflict(
    near: HttpPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def contended(order: AggregateEditRequested) -> AggregateEditAnswered:
        return AggregateEditAnswered(result=Contended())

    monkeypatch.setattr(near.placement.aggregates, "edit", contended)
    assert error_of(await near("POST", HERE, {"name": "x"}))[:2] == (409, CONCURRENT_UPDATE)


async def test_the_feed_sends_aggregate_changes(api: HttpPlacement) -> None:
    await has_hosts(api.placement, 1)
    async with a_stream(api, "/berth/changes", "after=0") as stream:
        await make(api.placement, EAST, "east", "host-1", **ZONE)
        await done(api.placement, ChangeAggregate(aggregate=EAST, name="orient"))
        events = await stream.events(4)
    assert '"aggregates":[{"id":"' + EAST + '","name":"east"' in events[2]
    assert '"aggregates"' not in events[1]
    assert '"name":"orient"' in events[3]


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


JSON = {
    "x-auth-token": "admin",
    "content-type": "application/json",
    "openstack-api-version": "placement latest",
}


def test_every_operation_has_a_known_rule(near: HttpPlacement) -> None:
    rules = set()
    for route in near.app.router.routes:
        assert isinstance(route, Route) and isinstance(route.app, Resource)
        rules |= {operation.rule for operation in route.app.operations if operation.rule}
    assert rules == {*DEFAULTS, *http_rules()}


@pytest.mark.parametrize("path", ["/resource_providers", "/nowhere"])
async def test_a_missing_token_is_reported_before_a_wrong_version_or_path(
    near: HttpPlacement, path: str
) -> None:
    answer = await near.client.get(path, headers={"openstack-api-version": "placement 9.9"})
    assert answer.status_code == 401
    assert answer.headers["x-openstack-request-id"].startswith("req-")


@pytest.mark.parametrize(("path", "limit"), [("/resource_providers", 1 << 20), ("/allocations", 4 << 20)])
async def test_a_body_over_the_limit_is_refused_with_or_without_content_length(
    near: HttpPlacement, path: str, limit: int
) -> None:
    async def too_long() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(2 * limit // 65536):
            yield b"x" * 65536

    for content in (b"x" * (limit + 1), too_long()):
        answer = await near.client.post(path, headers=JSON, content=content)
        assert answer.status_code == 413
        assert f"{limit} bytes" in answer.text


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("resources1=VCPU:1&required1=CUSTOM_NOPE&group_policy=none", UNDEFINED),
        ("resources1=CUSTOM_NOPE:1&group_policy=none", UNDEFINED),
        ("root_required=HW_CPU_X86_AVX2,!HW_CPU_X86_AVX2", BAD_VALUE),
        ("same_subtree=_X", BAD_VALUE),
    ],
)
async def test_a_wrong_query_for_candidates_is_refused_though_there_are_no_providers(
    near: HttpPlacement, query: str, code: str
) -> None:
    answer = await near("GET", f"/allocation_candidates?resources=VCPU:1&{query}")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, code)
