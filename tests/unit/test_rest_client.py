"""The client of the REST API, against scripted responses: repetitions, refusals, and resumed streams."""

import httpx
import msgspec
import pytest

from berth.client import Blocking, RestClient, RestRefusal
from tests.support.ids import uid
from tests.support.rest_berth import a_boot

BOOT = a_boot(uid(1))
ACCEPTED = {"request": BOOT.request, "project": "web", "builds": [BOOT.request]}
Responses = list[httpx.Response | httpx.TransportError]


def a_client(responses: Responses, seen: list[httpx.Request], patience: float = 30.0) -> RestClient:
    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        response = responses.pop(0)
        if isinstance(response, httpx.TransportError):
            raise response
        return response

    return RestClient("http://berth", "t", patience=patience, transport=httpx.MockTransport(respond))


async def test_a_request_is_repeated_until_it_is_answered() -> None:
    seen = list[httpx.Request]()
    responses: Responses = [
        httpx.ConnectError("away"),
        httpx.Response(503),
        httpx.Response(202, json=ACCEPTED),
    ]
    async with a_client(responses, seen) as client:
        assert (await client.boot(BOOT)).builds == (BOOT.request,)
    assert len(seen) == 3
    assert len({request.content for request in seen}) == 1
    assert seen[0].headers["x-auth-token"] == "t"


@pytest.mark.parametrize(
    ("last", "error"),
    [(httpx.ConnectError("away"), "away"), (httpx.Response(503, text="later"), "503: later")],
    ids=["unreachable", "unavailable"],
)
async def test_a_request_fails_after_the_patience(
    last: httpx.Response | httpx.TransportError, error: str
) -> None:
    async with a_client([last], [], patience=0.0) as client:
        with pytest.raises((httpx.ConnectError, RestRefusal), match=error):
            await client.boot(BOOT)


def test_a_refusal_is_not_repeated_and_has_its_reason() -> None:
    refused = {
        "errors": [{"status": 409, "title": "Conflict", "detail": "There was a conflict.\n\n id taken"}]
    }
    with Blocking(a_client([httpx.Response(409, json=refused)], [])) as berth:
        with pytest.raises(RestRefusal) as error:
            berth(lambda client: client.boot(BOOT))
    assert (error.value.status, error.value.reason) == (409, "id taken")


def a_stream(*numbers: int) -> httpx.Response:
    events = [f'id: {number}\nevent: build.ended\ndata: {{"build":"{number}"}}\n\n' for number in numbers]
    return httpx.Response(200, text=": berth\n\n" + "".join(events))


def test_a_lost_stream_is_opened_again_after_the_last_event() -> None:
    seen = list[httpx.Request]()
    responses: Responses = [a_stream(3, 5), httpx.ReadError("lost"), a_stream(6)]
    with Blocking(a_client(responses, seen)) as berth:
        stream = berth.each(lambda client: client.events(after=2))
        found = [next(stream) for _ in range(3)]
    assert [event.number for event in found] == [3, 5, 6]
    assert msgspec.json.decode(found[2].data) == {"build": "6"}
    assert [request.url.params["after"] for request in seen] == ["2", "5", "5"]
