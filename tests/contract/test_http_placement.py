"""The Placement API on both databases: tests in addition to the published tests of Placement.

Those tests run on both databases, too (`make compliance`).
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from starlette.routing import Route

from berth.features import http_rules
from bus.claims import ReleaseRequested
from bus.errors import Unavailable
from placement_worker.http.access import DEFAULTS, Headers, Identity, UncheckedTokens
from placement_worker.http.app import Resource
from placement_worker.http.errors import BAD_VALUE, UNDEFINED
from tests.support.http_placement import HttpPlacement, an_api, claim_in_json, error_of
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


class UncheckableTokens(UncheckedTokens):
    async def __call__(self, headers: Headers) -> Identity | None:
        raise Unavailable("The other service is temporarily unavailable.")


async def test_a_request_whose_token_cannot_be_checked_may_be_repeated_later() -> None:
    async with opened(tokens=UncheckableTokens()) as near:
        answer = await near("GET", "/resource_providers")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "temporarily unavailable" in error_of(answer)[2]
        for path in ("/", "/healthz", "/metrics"):  # paths that need no token
            assert (await near("GET", path)).status_code == 200


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


# Reasons for empty answers


async def test_any_host_name_can_be_sent_in_the_header(near: HttpPlacement) -> None:
    name = "bad\r\nname\x1b ☃"
    await near.made("/resource_providers", {"name": name, "uuid": A}, method="POST")
    why = (await near("GET", "/allocation_candidates?resources=VCPU:9")).headers["berth-why"]
    assert why.isprintable()
    assert "bad" in why


async def test_the_reason_without_any_provider(near: HttpPlacement) -> None:
    answer = await near("GET", "/allocation_candidates?resources=VCPU:9")
    assert answer.headers["berth-why"] == "there are no providers"


# ETags


async def test_an_unchanged_resource_is_304(api: HttpPlacement) -> None:
    await api.provider(A, VCPU=8)
    at = f"/resource_providers/{A}/inventories"
    first = await api("GET", at)
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = await api("GET", at, if_none_match=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    await api("DELETE", f"{at}/VCPU")
    changed = await api("GET", at, if_none_match=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


async def test_only_answers_to_reads_have_an_etag(near: HttpPlacement) -> None:
    made = await near("POST", "/resource_providers", {"name": "n"})
    assert "etag" not in made.headers
    assert "etag" not in (await near("GET", "/nowhere")).headers
    await near.made("/traits/CUSTOM_T")
    assert "etag" not in (await near("GET", "/traits/CUSTOM_T")).headers


# Health


async def test_readiness_fails_while_the_database_is_unavailable(
    near: HttpPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(near.placement.memory, "fresh", away)
    for path, status in (
        ("/readyz", 503),
        ("/healthz", 200),
        ("/allocation_candidates?resources=VCPU:1", 503),
    ):
        assert (await near("GET", path)).status_code == status


async def test_a_process_that_is_being_stopped_is_not_ready(near: HttpPlacement) -> None:
    near.app.state.closing.set()
    assert (await near("GET", "/readyz")).status_code == 503
