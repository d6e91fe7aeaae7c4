"""HTTP requests that reach no operation: no token, unreadable, too large; and the rule of each operation."""

from collections.abc import AsyncIterator

import pytest
from starlette.routing import Route

from placement_worker.http.errors import BAD_VALUE, UNDEFINED
from placement_worker.http.policy import DEFAULTS
from placement_worker.http.routes import Resource
from tests.support.http_placement import HttpPlacement

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
    assert rules == set(DEFAULTS)


@pytest.mark.parametrize("path", ["/resource_providers", "/nowhere"])
async def test_a_missing_token_is_reported_before_a_wrong_version_or_path(
    near: HttpPlacement, path: str
) -> None:
    answer = await near.client.get(path, headers={"openstack-api-version": "placement 9.9"})
    assert answer.status_code == 401
    assert answer.headers["x-openstack-request-id"].startswith("req-")


@pytest.mark.parametrize(
    "body", [b"\xff", "[" * 100_000, '{"name": "a\\u0000b"}', '{"name": ' + "9" * 5000 + "}"]
)
async def test_unreadable_json_is_refused(near: HttpPlacement, body: str | bytes) -> None:
    answer = await near.client.post("/resource_providers", headers=JSON, content=body)
    assert answer.status_code == 400
    assert "Malformed JSON:" in answer.text or "U+0000" in answer.text


async def test_a_content_length_of_5000_digits_is_too_large(near: HttpPlacement) -> None:
    headers = JSON | {"content-length": "9" * 5000}
    assert (await near.client.post("/resource_providers", headers=headers)).status_code == 413


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
