"""Access to the HTTP API: tokens, roles, policies, other origins."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from placement_worker.http.auth import Identity, digest_of, of_tokens
from tests.support.http_placement import HttpPlacement, a_door, error_of
from tests.support.ids import uid

MEMORY = "sqlite+aiosqlite://"


def opened(**options: Any) -> AbstractAsyncContextManager[HttpPlacement]:
    return a_door(MEMORY, **options)


async def test_without_a_token_nobody_comes_in(near: HttpPlacement) -> None:
    for token in ({}, {"x-auth-token": ""}):
        answer = await near.client.get("/resource_providers", headers=token)
        assert error_of(answer)[0] == 401


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/resource_providers", "placement:resource_providers:list"),
        ("/usages?project_id=p", "placement:usages"),
        ("/berth/changes", "berth:changes:list"),
        ("/berth/aggregates", "berth:aggregates:list"),
    ],
)
async def test_a_forbidden_request_is_refused_with_the_rule(
    near: HttpPlacement, path: str, rule: str
) -> None:
    answer = await near("GET", path, token="somebody", x_roles="member")
    assert error_of(answer)[0] == 403
    assert f"Policy does not allow {rule} to be performed." in answer.text


async def test_a_policy_counts_before_what_is_asked_and_after_how(near: HttpPlacement) -> None:
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


async def test_tokens_prove_who_asks() -> None:
    known = of_tokens(
        [
            (digest_of("s3cret"), Identity("nova", "service", frozenset({"service"}))),
            (digest_of("r3ader"), Identity("ann", "mine", frozenset({"reader"}))),
        ]
    )
    async with opened(authenticate=known) as near:
        assert (await near("GET", "/resource_providers", token="s3cret")).status_code == 200
        assert (await near("GET", "/resource_providers", token="admin")).status_code == 401
        assert (await near("GET", "/resource_providers", token="r3ader", x_roles="admin")).status_code == 403
        assert (await near("GET", "/usages?project_id=mine", token="r3ader")).status_code == 200


# Pages of other origins

GOOD, BAD = "http://valid.example.com", "http://invalid.example.com"


@pytest.fixture
async def shared() -> AsyncIterator[HttpPlacement]:
    async with opened(origins=(GOOD,)) as near:
        yield near


def asking(origin: str, *names: str) -> dict[str, str]:
    asks = {"origin": origin, "access-control-request-method": "GET"}
    return asks | ({"access-control-request-headers": ",".join(names)} if names else {})


async def test_a_method_it_may_not_use_is_refused_before_it_is_used(shared: HttpPlacement) -> None:
    asks = asking(GOOD) | {"access-control-request-method": "TRACE"}
    answer = await shared.client.options("/usages", headers=asks)
    assert answer.status_code == 400
    assert "TRACE" not in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize(("origin", "may_read"), [(GOOD, True), (BAD, False), ("null", False)])
@pytest.mark.parametrize("path", ["/", "/resource_providers", "/nowhere"])
async def test_answers_and_refusals_are_shared_with_whom_they_may(
    shared: HttpPlacement, path: str, origin: str, may_read: bool
) -> None:
    answer = await shared.client.get(path, headers={"origin": origin})
    assert ("access-control-allow-origin" in answer.headers) is may_read
    if may_read:
        assert "x-openstack-request-id" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers["vary"].lower()


async def test_without_origins_there_is_no_asking_first(near: HttpPlacement) -> None:
    answer = await near.client.options("/", headers={"x-auth-token": "u", **asking(GOOD)})
    assert answer.status_code == 405
    answer = await near.client.get("/", headers=asking(GOOD))
    assert "access-control-allow-origin" not in answer.headers
