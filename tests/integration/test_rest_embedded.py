"""The REST API of a running berth: requests, results, events, and what the token of a project permits."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from berth.client import RestClient, RestRefusal
from berth.rest.bodies import Event
from bus import topics
from bus.clock import Clock
from bus.requests import Flavor
from tests.support.rest_berth import RestBerth, a_boot, a_rest_berth
from tests.support.waiting import in_time, until

HUGE = Flavor(name="huge", vcpus=4000)


def new_id() -> str:
    return Clock().uuid()


async def test_requests_over_http_are_checked_built_and_deleted(tmp_path: Path) -> None:
    async with a_rest_berth(tmp_path) as berth, berth.client() as ann:
        first = await ann.newest_event()
        await check_requests(berth, ann)
        await check_waiting_and_deletion(ann)
        await check_access(berth)
        await check_events(berth, ann, first)
        await check_bad_requests(berth)


async def refusal(call: Coroutine[Any, Any, Any]) -> tuple[int, str]:
    with pytest.raises(RestRefusal) as refused:
        await call
    return refused.value.status, refused.value.reason


async def check_requests(berth: RestBerth, ann: RestClient) -> None:
    batch = [a_boot(new_id(), 3, name="three"), a_boot(new_id(), flavor=HUGE)]
    accepted = await ann.boot_many(batch)
    assert [each.project for each in accepted] == ["web", "web"]
    built, refused = [await ann.ended(request.request) for request in batch]
    assert {build.build: build.status for build in built.builds} == dict.fromkeys(
        batch[0].instances, "active"
    )
    assert refused.builds[0].status == "refused"
    assert refused.builds[0].code == "class"
    assert "4000 free" in refused.builds[0].reason
    assert await ann.boot_many(batch) == accepted
    changed = structs.replace(batch[0], name="four")
    assert await refusal(ann.boot(changed)) == (409, f"{changed.request} is the id of another request")
    other = a_boot(new_id())
    status, _ = await refusal(ann.boot(structs.replace(other, instances=batch[0].instances[:1])))
    assert status == 409
    with pytest.raises(RestRefusal, match="404"):
        await ann.request(other.request)
    listed = await ann.builds(name="three", limit="2")
    rest = await ann.builds(name="three", after=listed.after)
    assert [each.build for each in (*listed.instances, *rest.instances)] == sorted(batch[0].instances)
    assert (rest.after, rest.silent_cells) == ("", ())
    assert (await ann.build(refused.request)).status == "refused"


async def check_waiting_and_deletion(ann: RestClient) -> None:
    waits = a_boot(new_id(), zone="nowhere", wait="1h")
    await ann.boot(waits)

    async def is_waiting() -> bool:
        return (await ann.request(waits.request)).waiting is not None

    await until(is_waiting, "the request waits for capacity")
    await ann.delete(waits.request)
    assert (await ann.ended(waits.request)).builds[0].code == "cancelled"
    built = a_boot(new_id())
    await ann.boot(built)
    await ann.ended(built.request)
    await ann.delete(built.request)

    async def is_deleted() -> bool:
        return (await ann.build(built.request)).status == "deleted"

    await until(is_deleted, "the instance is deleted")


async def check_access(berth: RestBerth) -> None:
    of_web, of_batch = a_boot(new_id()), a_boot(new_id())
    async with (
        berth.client("ann") as ann,
        berth.client("bob") as bob,
        berth.client("rita") as rita,
        berth.client("olga") as olga,
        berth.client("nobody") as unknown,
    ):
        assert (await refusal(unknown.boot(of_web)))[0] == 401
        assert (await refusal(rita.boot(of_web)))[0] == 403
        await ann.boot(of_web)
        await rita.ended(of_web.request)
        assert (await refusal(bob.request(of_web.request)))[0] == 404
        near = structs.replace(of_batch, hints=structs.replace(of_batch.hints, same_host=(of_web.request,)))
        assert (await refusal(bob.boot(near)))[0] == 403
        assert (await bob.builds()).instances == ()
        # of a build that was requested on the bus as well
        on_bus = a_boot(new_id(), project="web", reply_to="test")
        ended = await berth.running.bus.listen(topics.BUILD_ENDED.at(reply_to="test"))
        await berth.running.bus.publish(on_bus)
        await in_time(ended.get())
        assert (await refusal(bob.delete(on_bus.request)))[0] == 404
        await ann.delete(on_bus.request)
        await olga.boot(structs.replace(of_batch, project="batch"))
        assert (await bob.ended(of_batch.request)).project == "batch"


async def check_events(berth: RestBerth, ann: RestClient, first: int) -> None:
    """All results so far are events of the project; a stream can be resumed after any of them."""
    async with httpx.AsyncClient(base_url=berth.url, headers={"x-auth-token": "token of ann"}) as http:
        found = (await http.get("/v1/events", params={"after": first})).json()["events"]
        assert {event["event"] for event in found} == {
            "build.ended", "build.unplaceable", "build.cancelled", "build.deleted",
        }  # fmt: skip
        numbers = [event["number"] for event in found]
        assert numbers == sorted(set(numbers))
        resumed = list[Event]()
        async for event in ann.events(after=numbers[2]):
            resumed.append(event)
            if event.number == numbers[-1]:
                break
        assert [event.number for event in resumed] == numbers[3:]
        for after, status in (("-1", 400), (str(numbers[-1] + 10**6), 410)):
            assert (await http.get("/v1/events", params={"after": after})).status_code == status
        # a long poll ends with the next event
        polled = asyncio.create_task(
            http.get("/v1/events", params={"after": numbers[-1], "wait": 60}, timeout=90)
        )
        await ann.boot(a_boot(new_id()))
        assert (await in_time(polled)).json()["events"]


def a_dict(**fields: Any) -> dict[str, Any]:
    id_ = "00000000-0000-4000-8000-000000000001"
    return {"request": id_, "instances": [id_], "flavor": {"name": "small", "vcpus": 1}, **fields}


BAD_REQUESTS: tuple[tuple[str, str, dict[str, Any] | None, int, str], ...] = (
    ("POST", "/v1/requests", {"request": "x"}, 400, "request: "),
    ("POST", "/v1/requests", a_dict(reply_to="a.b"), 400, "reply_to: "),
    ("POST", "/v1/requests", a_dict(zone="a\0b"), 400, "U+0000"),
    ("POST", "/v1/requests", a_dict(hints={"query": "[1"}), 400, "query"),
    ("POST", "/v1/requests", a_dict(name="x" * 2_000_000), 413, "bytes"),
    ("POST", "/v1/requests/batch", {"requests": []}, 400, "requests: "),
    ("POST", "/v1/requests/batch", {"requests": [a_dict(), a_dict()]}, 400, "twice"),
    ("GET", "/v1/requests/x", None, 400, "UUID"),
    ("GET", f"/v1/requests/{new_id()}?wait=soon", None, 400, "wait"),
    ("GET", "/v1/builds?statuses=active", None, 400, "statuses"),
    ("GET", "/v1/builds?status=happy", None, 400, "happy"),
    ("GET", "/v1/builds?limit=0", None, 400, "limit"),
    ("GET", "/v1/builds?cell=c9", None, 400, "cells are c1, c2"),
    ("PUT", "/v1/requests", {}, 405, ""),
    ("GET", "/v2", None, 404, ""),
)


async def check_bad_requests(berth: RestBerth) -> None:
    async with httpx.AsyncClient(base_url=berth.url, headers={"x-auth-token": "token of olga"}) as http:
        for method, path, body, status, reason in BAD_REQUESTS:
            answer = await http.request(method, path, json=body)
            assert (answer.status_code, reason in answer.text) == (status, True), (path, answer.text)
        assert "v1/openapi.json" in (await http.get("/", headers={"x-auth-token": ""})).text
