"""`/berth/changes` over HTTP: the feed of every commit of placement."""

import asyncio
import json
import signal
from asyncio import StreamWriter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from features.placement_additions.feed import STREAMS
from tests.support.http_placement import HttpPlacement, a_stream, claim_in_json
from tests.support.http_process import PATIENT_BERTH, SECONDS, alone, an_api_process, as_http
from tests.support.ids import uid
from tests.support.waiting import patience

A, B = uid(1, "a"), uid(2, "a")


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


@pytest.mark.slow
async def test_at_shutdown_requests_are_completed_and_streams_end(tmp_path: Path) -> None:
    async with an_api_process(tmp_path, *alone(tmp_path), program=PATIENT_BERTH) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(as_http("GET", "/berth/changes"))
        assert b"200 OK" in await reader.readuntil(b": berth\n\n")
        idle: StreamWriter = (await asyncio.open_connection("127.0.0.1", api.port))[1]
        api.process.send_signal(signal.SIGTERM)
        async with patience(SECONDS):
            assert (await reader.read()).endswith(b"0\r\n\r\n")
            await api.process.wait()
        assert api.process.returncode == 0
        writer.close()
        idle.close()
