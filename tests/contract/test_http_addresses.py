"""Every address of the HTTP door, since which version it is there, and what every answer carries."""

from collections.abc import AsyncIterator

import pytest
from starlette.routing import Route

from placement_worker.http.operations import Resource
from placement_worker.http.policy import DEFAULTS
from tests.support.http_placement import HttpPlacement, error_of
from tests.support.ids import uid

P = f"/resource_providers/{uid(1, 'a')}"


# The table of the API: method, address, first minor version; what is older is 404.
SINCE = [
    ("GET", "/resource_providers", 0),
    ("POST", "/resource_providers", 0),
    ("GET", P, 0),
    ("PUT", P, 0),
    ("DELETE", P, 0),
    ("GET", f"{P}/inventories", 0),
    ("PUT", f"{P}/inventories", 0),
    ("POST", f"{P}/inventories", 0),
    ("DELETE", f"{P}/inventories", 5),
    ("GET", f"{P}/inventories/VCPU", 0),
    ("PUT", f"{P}/inventories/VCPU", 0),
    ("DELETE", f"{P}/inventories/VCPU", 0),
    ("GET", f"{P}/usages", 0),
    ("GET", f"{P}/aggregates", 1),
    ("PUT", f"{P}/aggregates", 1),
    ("GET", f"{P}/traits", 6),
    ("PUT", f"{P}/traits", 6),
    ("DELETE", f"{P}/traits", 6),
    ("GET", f"{P}/allocations", 0),
    ("GET", f"/allocations/{uid(1)}", 0),
    ("PUT", f"/allocations/{uid(1)}", 0),
    ("DELETE", f"/allocations/{uid(1)}", 0),
    ("POST", "/allocations", 13),
    ("GET", "/resource_classes", 2),
    ("POST", "/resource_classes", 2),
    ("GET", "/resource_classes/VCPU", 2),
    ("PUT", "/resource_classes/CUSTOM_X", 2),
    ("DELETE", "/resource_classes/CUSTOM_X", 2),
    ("GET", "/traits", 6),
    ("GET", "/traits/CUSTOM_T", 6),
    ("PUT", "/traits/CUSTOM_T", 6),
    ("DELETE", "/traits/CUSTOM_T", 6),
    ("GET", "/usages", 9),
    ("GET", "/allocation_candidates", 10),
    ("POST", "/reshaper", 30),
]


@pytest.mark.parametrize(("method", "path", "since"), SINCE)
async def test_an_address_is_there_since_its_version(
    near: HttpPlacement, method: str, path: str, since: int
) -> None:
    there = await near(method, path, minor=since)
    nowhere = "The resource could not be found.\n\n "
    assert there.status_code != 405
    assert there.status_code != 404 or error_of(there)[2] != nowhere
    if since:
        before = await near(method, path, minor=since - 1)
        assert before.status_code == (405 if path.endswith("/inventories") else 404)
        assert "allow" not in before.headers


def resources_of(near: HttpPlacement) -> dict[str, Resource]:
    found = dict[str, Resource]()
    for route in near.app.router.routes:
        assert isinstance(route, Route) and isinstance(route.app, Resource)
        found[route.path] = route.app
    return found


def test_the_table_is_whole_and_every_rule_is_known(near: HttpPlacement) -> None:
    offered = {
        (operation.method, path)
        for path, resource in resources_of(near).items()
        for operation in resource.operations
        if operation.rule.startswith("placement:") and "berth" not in path
    }
    listed = {
        (method, path.replace(uid(1, "a"), "{uuid}").replace("VCPU", "{c}").replace("CUSTOM_X", "{c}"))
        for method, path, _ in SINCE
    }
    assert len(offered) == len(listed)
    rules = {
        operation.rule
        for resource in resources_of(near).values()
        for operation in resource.operations
        if operation.rule
    }
    assert rules == set(DEFAULTS)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/", "GET"),
        ("DELETE", "/resource_providers", "GET, POST"),
        ("OPTIONS", "/resource_providers", "GET, POST"),
        ("HEAD", "/resource_providers", "GET, POST"),
        ("PATCH", P, "DELETE, GET, PUT"),
        ("POST", "/usages", "GET"),
    ],
)
async def test_another_method_is_405_with_those_that_are_there(
    near: HttpPlacement, method: str, path: str, allow: str
) -> None:
    answer = await near(method, path, minor=0)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow
    if method != "HEAD":
        assert f"The method {method} is not allowed for this resource." in answer.text


@pytest.mark.parametrize("path", ["/nowhere", "/resource_providers/", f"{P}/cows", f"{P}/inventories/"])
async def test_what_is_nowhere_is_404(near: HttpPlacement, path: str) -> None:
    answer = await near("GET", path)
    assert error_of(answer)[:2] == (404, "placement.undefined_code")


async def test_the_root_says_which_versions_there_are_and_needs_no_token(near: HttpPlacement) -> None:
    answer = await near.client.get("/")
    assert answer.json() == {
        "versions": [
            {
                "id": "v1.0",
                "max_version": "1.39",
                "min_version": "1.0",
                "status": "CURRENT",
                "links": [{"rel": "self", "href": ""}],
            }
        ]
    }
    assert answer.headers["openstack-api-version"] == "placement 1.0"


@pytest.mark.parametrize("path", ["/resource_providers", "/nowhere"])
async def test_everything_else_does_before_anything_is_looked_at(near: HttpPlacement, path: str) -> None:
    answer = await near.client.get(path, headers={"openstack-api-version": "placement 9.9"})
    assert answer.status_code == 401
    assert answer.headers["x-openstack-request-id"].startswith("req-")
    assert "openstack-api-version" not in answer.headers


async def test_a_version_comes_before_an_address(near: HttpPlacement) -> None:
    headers = {"x-auth-token": "admin", "openstack-api-version": "placement 9.9"}
    answer = await near.client.get("/nowhere", headers=headers)
    assert answer.status_code == 406
    assert "vary" not in answer.headers


async def test_every_answer_tells_its_version(near: HttpPlacement) -> None:
    for path, status in (("/resource_providers", 200), ("/nowhere", 404)):
        answer = await near("GET", path, minor=7)
        assert answer.status_code == status
        assert answer.headers["openstack-api-version"] == "placement 1.7"
        assert answer.headers["vary"] == "openstack-api-version"


# Date and cache


@pytest.mark.parametrize(
    ("method", "path", "since"),
    [("GET", path, since) for method, path, since in SINCE if method == "GET"] + [("GET", "/", 0)],
)
async def test_from_1_15_on_what_is_read_is_dated(
    near: HttpPlacement, method: str, path: str, since: int
) -> None:
    await near.provider(uid(1, "a"), VCPU=4)
    await near.made("/traits/CUSTOM_T")
    asks = {"/usages": "?project_id=p", "/allocation_candidates": "?resources=VCPU:1"}
    for minor in (14, 15):
        if minor >= since:
            answer = await near(method, path + asks.get(path, ""), minor=minor)
            assert answer.status_code in (200, 204)
            assert ("last-modified" in answer.headers) is (minor == 15)
            assert (answer.headers.get("cache-control") == "no-cache") is (minor == 15)


@pytest.mark.parametrize(
    ("path", "dated"), [("/resource_classes/CUSTOM_X", False), ("/traits/CUSTOM_T", True)]
)
async def test_of_what_is_made_without_a_body_only_traits_are(
    near: HttpPlacement, path: str, dated: bool
) -> None:
    for _ in ("made", "there already"):
        answer = await near("PUT", path)
        assert ("last-modified" in answer.headers) is dated
        assert answer.headers["location"] == f"http://placement{path}"
        assert "content-type" not in answer.headers


async def test_inventories_that_are_none_have_no_date(near: HttpPlacement) -> None:
    await near.provider(uid(1, "a"))
    answer = await near("GET", f"{P}/inventories")
    assert "last-modified" not in answer.headers
    assert answer.headers["cache-control"] == "no-cache"


# Bodies and their types


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "status", "says"),
    [
        (
            "POST",
            "/resource_providers",
            {"content-type": "text/plain"},
            "x",
            415,
            "text/plain is not supported",
        ),
        ("POST", "/resource_providers", {}, "x", 400, "content-type header required"),
        ("PUT", P, {}, "", 415, "The media type None is not supported, use application/json"),
        ("DELETE", P, {}, "x", 400, "content-type header required"),
        ("POST", "/resource_providers", {"content-type": "application/json"}, "{", 400, "Malformed JSON:"),
        ("POST", "/resource_providers", {"content-type": "application/json"}, "", 400, "Malformed JSON:"),
        (
            "POST",
            "/resource_providers",
            {"content-type": "application/json"},
            b"\xff",
            400,
            "Malformed JSON:",
        ),
        (
            "POST",
            "/resource_providers",
            {"content-type": "application/json"},
            "[" * 100_000,
            400,
            "Malformed JSON:",
        ),
        (
            "POST",
            "/resource_providers",
            {"content-type": "application/json"},
            '{"name": "a\\u0000b"}',
            400,
            "U+0000",
        ),
        (
            "POST",
            "/resource_providers",
            {"content-type": "application/json"},
            '{"name": ' + "9" * 5000 + "}",
            400,
            "Malformed JSON:",
        ),
        (
            "POST",
            "/resource_providers",
            {"content-type": "application/json; charset=utf-8"},
            "{}",
            400,
            "'name' is a",
        ),
        (
            "GET",
            "/resource_providers",
            {"accept": "text/plain"},
            "",
            406,
            "Only application/json is provided",
        ),
        ("GET", "/resource_providers", {"accept": "text/html"}, "", 406, "<title>406 Not Acceptable</title>"),
    ],
)
async def test_what_cannot_be_read(
    near: HttpPlacement, method: str, path: str, headers: dict[str, str], content: str, status: int, says: str
) -> None:
    answer = await near.client.request(
        method, path, headers={"x-auth-token": "admin", **headers}, content=content
    )
    assert answer.status_code == status
    assert says in answer.text


@pytest.mark.parametrize("length", ["hi mom", "-1", "1.5", "٣"])
async def test_a_length_is_a_number(near: HttpPlacement, length: str) -> None:
    headers = {"x-auth-token": "admin", "content-type": "application/json", "content-length": length.encode()}
    answer = await near.client.post("/resource_providers", headers=headers)  # type: ignore[arg-type]
    assert (answer.status_code, "must be an integer" in answer.text) == (400, True)


async def test_a_length_beyond_counting_is_too_much(near: HttpPlacement) -> None:
    headers = {"x-auth-token": "admin", "content-type": "application/json", "content-length": b"9" * 5000}
    answer = await near.client.post("/resource_providers", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 413


async def test_old_versions_count_before_wrong_types(near: HttpPlacement) -> None:
    answer = await near("POST", "/resource_classes", minor=1, content_type="text/plain")
    assert answer.status_code == 404


@pytest.mark.parametrize(("path", "limit"), [("/resource_providers", 1 << 20), ("/allocations", 4 << 20)])
async def test_a_body_has_a_limit_said_or_found(near: HttpPlacement, path: str, limit: int) -> None:
    async def too_long() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(2 * limit // 65536):
            yield b"x" * 65536

    headers = {
        "x-auth-token": "admin",
        "content-type": "application/json",
        "openstack-api-version": "placement latest",
    }
    for content in (b"x" * (limit + 1), too_long()):
        answer = await near.client.post(path, headers=headers, content=content)
        assert answer.status_code == 413
        assert f"{limit} bytes" in answer.text


async def test_an_address_with_a_nul_is_nowhere(near: HttpPlacement) -> None:
    for path in ("/traits/CUSTOM_%00", "/allocations/%00", "/resource_providers/%00"):
        assert (await near("GET", path)).status_code == 404
