"""The control room handles requests, rows and messages that no page and no worker would create."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import pytest_asyncio
from sqlalchemy import text

from bus.errors import Undecodable
from bus.messages import InventoryReported
from bus.reports import Inventory
from tests.support.ids import uid
from tests.support.open_berth import pages_of_features
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room
from tests.support.waiting import patience

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWERED = (
    *("trees", "aggregates", "cells", "providers", "changes"),
    *(query.name for pages in pages_of_features() for query in getattr(pages, "ANSWERED", ())),
)


def of_features(name: str) -> dict[str, Any]:
    """Return the dictionaries with this name of the test pages of all features, merged."""
    return {key: value for pages in pages_of_features() for key, value in getattr(pages, name, {}).items()}


VALUES = {
    "empty": "",
    "NUL": "a\x00b",
    "line ends": "a\r\nset-cookie: x=y",
    "markup": "<script>alert(1)</script>'\"",
    "long": "a" * 20_000,
    "negative": "-1",
    "many digits": "9" * 5000,
    "leading zeros": "0" * 13 + "1" + "9" * 5000,
    "a float": "1e999",
    "not a number": "nan",
    "another digit": "²٣",
    "a pattern": "*[!" * 100,
    "many hosts": "\n".join(["1000000xVCPU:1"] * 40),
    "many classes": ",".join(f"CUSTOM_{number}:1" for number in range(2000)),
    "a huge amount": "VCPU:00000000000001" + "9" * 100,
    "an id": uid(1),
    "an odd id": "{" + "0" * 32 + "}",
}
IDS = ("an id", "an odd id")
PARAMETERS = {
    "/": ("wait",),
    "/login": ("x",),
    "/hosts": ("flavor", "window", "done", "made"),
    "/host-table": ("q", "cell", "state", "sort", "page"),
    "/find": ("q",),
    "/hosts.json": ("flavor", "since", "layout"),
    "/instances": ("project", "host", "cell", "status", "name", "after"),
    "/builds": ("id", "failed"),
    "/bus": ("topic",),
    "/bus/dead": ("queue", "after", "replayed"),
    "/bus/letter": ("id",),
    "/metal": ("q", "state"),
    **of_features("PARAMETERS"),
}
STREAMS = (
    "/now",
    "/hosts",
    "/builds",
    "/bus",
    "/metal",
    *(path for pages in pages_of_features() for path in getattr(pages, "STREAMS", ())),
)
IN_PATHS = (
    "/hosts/{}",
    "/builds/{}",
    "/static/{}",
    "/{}",
    *(path for pages in pages_of_features() for path in getattr(pages, "IN_PATHS", ())),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def room() -> AsyncIterator[VisitedRoom]:
    async with a_room_of(a_report(1, inventories=OF_HOSTS)) as visited:
        await visited.sign_in("reader")
        yield visited


OF_HOSTS = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=8000)}


@asynccontextmanager
async def a_room_of(*reports: InventoryReported, odd: str = "") -> AsyncIterator[VisitedRoom]:
    """Yield a control room with hosts; `odd` is an SQL assignment for the first host's inventories."""
    async with a_placement("sqlite+aiosqlite://") as placement:
        assert not any(await report(placement, *reports))
        if odd:
            of_one = "SELECT min(resource_provider_id) FROM inventories"
            async with placement.database.write() as tx:
                await tx.execute(
                    text(f"UPDATE inventories SET {odd} WHERE resource_provider_id = ({of_one})")
                )
        workers = (
            silent_placement(placement),
            *(worker for pages in pages_of_features() for worker in getattr(pages, "SCHEDULERS", ())),
        )
        async with a_visited_room(*workers, answered=ANSWERED) as visited:
            yield visited


async def statuses(room: VisitedRoom, *addresses: str) -> dict[str, int]:
    found = {}
    for address in addresses:
        method = "HEAD" if address.endswith("/events") else "GET"  # a stream never ends by itself
        answer = await room.browser.request(method, address, headers=HTML)
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        if answer.status_code >= 500 or (is_page and "<script>alert" in answer.text):
            found[address[:200]] = answer.status_code
    return found


# Requests


@pytest.mark.parametrize("path", PARAMETERS)
async def test_any_parameter_gets_a_page(room: VisitedRoom, path: str) -> None:
    known = of_features("KNOWN").get(path, {})
    asked = [
        f"{path}?{urlencode({**known, name: value})}"
        for name in PARAMETERS[path]
        for value in VALUES.values()
    ]
    odd = [f"{path}?{name}{tail}" for name in PARAMETERS[path] for tail in ("=%ff%00", "[]=1", "&&=&%")]
    assert await statuses(room, *asked, *odd) == {}


@pytest.mark.parametrize("path", IN_PATHS)
async def test_any_path_gets_a_page(room: VisitedRoom, path: str) -> None:
    parts = [quote(value, safe="") for value in VALUES.values()]
    parts += ["%ff", "%00", "%2e%2e%2froom.css", "..%5c..", "%", "%2f%2f"]
    assert await statuses(room, *(path.format(part) for part in parts)) == {}


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_is_not_opened_by_another_method(room: VisitedRoom, path: str) -> None:
    async with patience():
        head = await room.browser.head(f"{path}/events")
        assert (head.status_code, head.content) == (200, b"")
        for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"):
            answer = await room.browser.request(method, f"{path}/events")
            assert answer.status_code == 405
            assert "GET" in answer.headers["allow"]


def a_form(count: int) -> bytes:
    return "&".join(f"f{number}=1" for number in range(count)).encode()


BODIES: tuple[tuple[bytes, dict[str, str], int], ...] = (
    (a_form(250), {}, 403),
    (a_form(301), {}, 413),
    (a_form(5000), {}, 413),
    (b"f=" + b"x" * 70_000, {}, 413),
    (b"f=1", {"content-length": "99999999999999999999"}, 413),
    (b"f=1", {"content-length": "000000000000000000003"}, 413),
    (b"f=1", {"content-length": "-3"}, 413),
    (b"\xff\xfe\x00%00&=&&;%", {}, 403),
    (b'{"form_token": 1}', {"content-type": "application/json"}, 403),
    (b"--x\r\n", {"content-type": "multipart/form-data; boundary=x"}, 403),
    (b"", {}, 403),
)


@pytest.mark.parametrize(
    "path", ["/login", "/logout", "/theme", "/bus/dead", "/hosts/h", *of_features("FORM_FIELDS")]
)
async def test_a_form_that_no_page_has_is_refused_with_a_reason(room: VisitedRoom, path: str) -> None:
    for body, headers, status in BODIES:
        form = {"content-type": "application/x-www-form-urlencoded", **HTML, **headers}
        answer = await room.browser.post(path, content=body, headers=form)
        assert answer.status_code == status
        assert "Not done" in answer.text


async def test_a_body_without_a_length_is_refused(room: VisitedRoom) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536

    answer = await room.browser.post("/theme", content=endless(), headers=HTML)
    assert answer.status_code == 413


# page with a form → field with an invalid value → other fields of the form
FORMS: dict[str, dict[str, dict[str, str]]] = {
    "/theme": {"theme": {}, "back": {}},
    "/hosts/host-1": {"act": {}, "cause": {}},
    "/bus/dead": {"act": {}, "sure": {}},
}
for _path, _fields in of_features("FORM_FIELDS").items():
    FORMS.setdefault(_path, {}).update(_fields)


@pytest.mark.parametrize("path", FORMS)
async def test_a_reader_changes_nothing_and_an_admin_only_by_valid_forms(
    room: VisitedRoom, path: str
) -> None:
    async with room.visitor() as admin:
        await admin.sign_in("admin")
        token, own = await admin.form_token(), await room.form_token()
        for name, others in FORMS[path].items():
            for value in (value for kind, value in VALUES.items() if kind not in IDS):
                given = {"act": "drop", "letter:x": "1", **others, name: value}
                refused = await room.browser.post(path, data={"form_token": own, **given}, headers=HTML)
                assert refused.status_code == (303 if path == "/theme" else 403)
                answer = await admin.browser.post(path, data={"form_token": token, **given}, headers=HTML)
                assert answer.status_code in (303, 400, 404, 409, 503)
                assert answer.headers.get("location", "/").startswith("/")
                assert not answer.headers.get("location", "/").startswith(("//", "/\\"))


# Stored data

ODD_PAGES = [page for pages in pages_of_features() for page in getattr(pages, "ODD", ())]


@pytest.mark.parametrize("path", ["/hosts.json", "/hosts/host-1", *ODD_PAGES])
async def test_an_unreadable_answer_is_named(path: str) -> None:
    async def unreadable(_: Any) -> Any:
        raise Undecodable("TreesFound: Expected `float` >= 0.0 - at `$.inventories[0][6]`")

    sent = dict.fromkeys(("trees", "providers", "changes"), unreadable)
    async with a_visited_room(sent={"cells": unreadable, **sent}) as visited:
        answer = await visited.browser.get(path, headers=HTML)
        assert "Expected `float`" in answer.text.replace("&#96;", "`")
        assert answer.status_code in (200, 503)
