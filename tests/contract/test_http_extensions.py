"""berth's additions to the Placement API: reasons, bulk load, change feed, ETags, health."""

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bus.errors import Unavailable
from placement_worker.http.app import STREAMS
from tests.support.http_placement import HttpPlacement, a_stream, claim_in_json, error_of
from tests.support.ids import uid

A, B = uid(1, "a"), uid(2, "a")


# Reasons for empty answers


async def test_an_empty_answer_has_the_reason_in_a_header(near: HttpPlacement) -> None:
    await near.provider(A, VCPU=8)
    empty = await near("GET", "/allocation_candidates?resources=VCPU:9")
    assert empty.json() == {"allocation_requests": [], "provider_summaries": {}}
    assert empty.headers["berth-why"] == (
        f"of 1, no host remains after: VCPU: 9 free; closest is {A}, which lacks 1 VCPU: asked 9, free 8"
    )
    found = await near("GET", "/allocation_candidates?resources=VCPU:8")
    assert "berth-why" not in found.headers


async def test_any_host_name_can_be_sent_in_the_header(near: HttpPlacement) -> None:
    name = "bad\r\nname\x1b ☃"
    await near.made("/resource_providers", {"name": name, "uuid": A}, method="POST")
    why = (await near("GET", "/allocation_candidates?resources=VCPU:9")).headers["berth-why"]
    assert why.isprintable()
    assert "bad" in why


async def test_the_reason_without_any_provider(near: HttpPlacement) -> None:
    answer = await near("GET", "/allocation_candidates?resources=VCPU:9")
    assert answer.headers["berth-why"] == "there are no providers"


@pytest.mark.parametrize("minor", [0, 10, 39])
async def test_explain_takes_the_same_query(near: HttpPlacement, minor: int) -> None:
    await near.provider(A, VCPU=8)
    await near.provider(B, VCPU=4)
    sent = await near.made("/berth/explain?resources=VCPU:9", method="GET", minor=minor)
    assert (sent["considered"], sent["fitting"]) == (2, 0)
    (removal,) = sent["removals"]
    assert (removal["constraint"], removal["removed"], removal["left"]) == ("VCPU: 9 free", 2, 0)
    assert (removal["code"], removal["hosts"]) == ("class", [A, B])
    assert sent["nearest"][0] == {"host": A, "lacks": "1 VCPU: asked 9, free 8", "code": "class"}
    assert sent["why"].startswith("of 2, no host remains")
    sent = await near.made("/berth/explain?resources=VCPU:5", method="GET", minor=minor)
    assert (sent["considered"], sent["fitting"], sent["why"]) == (2, 1, "")


async def test_explain_validates_like_the_api(near: HttpPlacement) -> None:
    assert error_of(await near("GET", "/berth/explain?resources=COW:1"))[0] == 400
    assert error_of(await near("GET", "/berth/explain?limit=1"))[0] == 400


# Bulk load


def a_load_in_json(number: int, parent: int | None = None, **given: Any) -> dict[str, Any]:
    return {
        "id": uid(number, "a"),
        "name": f"host-{number}",
        "parent": None if parent is None else uid(parent, "a"),
        "inventories": {"VCPU": {"total": 8}},
        **given,
    }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "missing required field `providers`"),
        ({"providers": []}, "length >= 1"),
        ({"providers": [{"id": "x"}]}, "$.providers[0]"),
        (
            {"providers": [a_load_in_json(1, inventories={"VCPU": {"total": -1}})]},
            "$.providers[0].inventories",
        ),
        ([], "Expected `object`"),
    ],
)
async def test_an_invalid_load_is_refused_with_the_field(near: HttpPlacement, body: Any, says: str) -> None:
    error = error_of(await near("POST", "/berth/providers", body))
    assert (error[0], says in error[2]) == (400, True), error


# The change feed


def change_of(event: str) -> tuple[int, dict[str, Any]]:
    fields = dict(line.split(": ", 1) for line in event.splitlines())
    assert fields["event"] == "changed"
    answer = json.loads(fields["data"])
    assert answer["number"] == int(fields["id"])
    return answer["number"], answer["changes"][-1]


async def seen(api: HttpPlacement) -> int:
    return int((await api.made("/readyz", method="GET"))["seen"])


async def test_the_feed_sends_every_change_in_order_and_resumes(api: HttpPlacement) -> None:
    start = await seen(api)
    await api.provider(A, VCPU=8)
    await api.made(f"/allocations/{uid(1)}", claim_in_json((A, {"VCPU": 2})))
    async with a_stream(api, "/berth/changes", f"after={start}") as stream:
        assert (stream.status, stream.headers["cache-control"]) == (200, "no-store")
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["x-openstack-request-id"].startswith("req-")
        sent = [change_of(event) for event in await stream.events(await seen(api) - start)]
        assert [number for number, _ in sent] == list(range(start + 1, start + 1 + len(sent)))
        assert sent[-1][1]["provider"] == A
        assert (sent[-1][1]["used"], sent[-1][1]["reshaped"]) == ({"VCPU": 2}, False)
        await api("DELETE", f"/allocations/{uid(1)}")  # while a client follows the feed
        number, change = change_of((await stream.events(1))[0])
        assert change["used"] == {"VCPU": 0}
    async with a_stream(api, "/berth/changes", last_event_id=str(number - 1)) as stream:
        assert change_of((await stream.events(1))[0]) == (number, change)


async def test_the_feed_without_a_number_begins_with_new_changes(api: HttpPlacement) -> None:
    await api.provider(A)
    async with a_stream(api, "/berth/changes") as stream:
        await api.provider(B)
        assert change_of((await stream.events(1))[0])[1]["provider"] == B


async def test_feeds_of_one_user_leave_connections_to_others(near: HttpPlacement) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(STREAMS):
            assert (await stack.enter_async_context(a_stream(near, "/berth/changes"))).status == 200
        refused = await near("GET", "/berth/changes")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        other = a_stream(near, "/berth/changes", x_auth_token="reader", x_roles="reader")
        assert (await stack.enter_async_context(other)).status == 200
    async with a_stream(near, "/berth/changes") as stream:
        assert stream.status == 200, "the others have ended"


async def test_a_future_change_number_is_refused(api: HttpPlacement) -> None:
    """The number is a mistake, or the database was restored: the client must read everything again."""
    newest = await seen(api)
    for number in (newest + 1, 10**17):
        answer = await api("GET", f"/berth/changes?after={number}")
        assert answer.status_code == 410
        assert f"there has been no change {number}, the newest is {newest}" in answer.text
        assert "read everything again" in answer.text


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "9" * 30, "٣"])
async def test_the_position_in_the_feed_is_a_number(near: HttpPlacement, after: str) -> None:
    assert (await near("GET", f"/berth/changes?after={after}")).status_code == 400


async def test_a_feed_ends_when_the_server_stops(near: HttpPlacement) -> None:
    async with a_stream(near, "/berth/changes") as stream:
        near.app.state.closing.set()
        await stream.ended()
    assert (await near("GET", "/readyz")).status_code == 503


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


async def test_metrics_count_by_route_pattern(near: HttpPlacement) -> None:
    await near("GET", f"/resource_providers/{A}")
    await near("GET", "/something/else")
    sent = (await near.client.get("/metrics")).text
    assert 'route="/resource_providers/{uuid}",status="404"' in sent
    assert 'route="",status="404"' in sent
    assert A not in sent
