"""Sessions of the control room: how they end, and how many requests and sign-ins one client may make."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from berth.settings import Settings
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room
from tests.support.waiting import in_time, until

ADMIN = '{token = "of-an-admin", user = "alice", project = "p", roles = ["admin"]}'
READER = '{token = "of-a-reader", user = "bob", project = "p", roles = ["reader"]}'
STREAMS = ("/now/events", "/what-if/capacity/events", "/bus/events", "/hosts/events")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "tokens.toml", ADMIN, READER)


@pytest.fixture
async def room(tokens: Path) -> AsyncIterator[VisitedRoom]:
    settings = Settings().having(placement_auth="tokens", placement_tokens=str(tokens))
    async with a_visited_room(settings=settings) as visited:
        yield visited


def write_tokens(file: Path, *tokens: str) -> Path:
    file.write_text(f"tokens = [{', '.join(tokens)}]")
    return file


async def status(room: VisitedRoom, path: str = "/", **headers: str) -> int:
    return (await room.browser.get(path, headers={**HTML, **headers})).status_code


def client(room: VisitedRoom, address: str = "10.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(room.app, client=(address, 1234))
    return httpx.AsyncClient(transport=transport, base_url=room.browser.base_url)


async def sign_in(browser: httpx.AsyncClient, token: str) -> httpx.Response:
    page = (await browser.get("/login", headers=HTML)).text
    found = re.search(r'name="form_token" value="(\w+)"', page)
    form = {"form_token": found[1] if found else "", "token": token}
    return await browser.post("/login", data=form, headers=HTML)


# How a session ends


async def test_signing_out_ends_the_session_on_the_server(room: VisitedRoom) -> None:
    await room.sign_in("of-an-admin")
    cookie = "; ".join(f"{name}={value}" for name, value in room.browser.cookies.items())
    assert await status(room) == 200
    await room.send("/logout")
    room.browser.cookies.clear()
    assert await status(room, "/", cookie=cookie) == 303


@pytest.mark.parametrize(
    "then",
    [
        (READER,),
        (READER, ADMIN.replace("of-an-admin", "rotated")),
        (READER, ADMIN.replace('"admin"]', '"reader"]')),
    ],
    ids=["removed", "rotated", "another role"],
)
async def test_a_changed_token_ends_its_sessions(
    room: VisitedRoom, tokens: Path, then: tuple[str, ...]
) -> None:
    await room.sign_in("of-an-admin")
    assert await status(room) == 200
    write_tokens(tokens, *then)
    assert await status(room) == 303
    write_tokens(tokens, ADMIN, READER)
    assert await status(room) == 303  # a session that has ended stays so
    assert (await room.sign_in("of-a-reader")).status_code == 303
    assert await status(room) == 200


async def test_a_token_file_that_cannot_be_read_changes_nothing(
    room: VisitedRoom, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await room.sign_in("of-an-admin")
    tokens.write_text('tokens = [{token = "of-an-admin", ')
    assert await status(room) == 200
    assert "not TOML" in caplog.text and "of-an-admin" not in caplog.text


async def test_a_session_ends_after_twelve_hours(room: VisitedRoom) -> None:
    await room.sign_in("of-an-admin")
    room.clock.now += 12 * 3600 - 1
    assert await status(room) == 200
    room.clock.now += 2
    assert await status(room) == 303


async def test_the_oldest_of_many_sessions_of_a_user_ends(room: VisitedRoom) -> None:
    await room.sign_in("of-an-admin")
    for _ in range(50):
        async with client(room) as other:
            await sign_in(other, "of-a-reader")
    assert await status(room) == 200  # sessions of another user
    for _ in range(50):
        async with client(room) as other:
            await sign_in(other, "of-an-admin")
    assert await status(room) == 303


async def sign_out(room: VisitedRoom, tokens: Path) -> None:
    await room.send("/logout")


async def remove_the_token(room: VisitedRoom, tokens: Path) -> None:
    write_tokens(tokens, READER)


async def pass_twelve_hours(room: VisitedRoom, tokens: Path) -> None:
    room.clock.now += 12 * 3600 + 1


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("end", [sign_out, remove_the_token, pass_twelve_hours])
async def test_open_event_streams_end_with_their_session(
    room: VisitedRoom, tokens: Path, path: str, end: Callable[[VisitedRoom, Path], Any]
) -> None:
    await room.sign_in("of-an-admin")
    stream = asyncio.create_task(room.browser.get(path))
    await until(lambda: bool(room.open_streams()), "the stream is open")
    await end(room, tokens)
    answer = await in_time(stream)
    assert "event: signed-out" in answer.text
    assert not room.open_streams()


async def test_many_streams_of_a_reader_leave_others_and_healthz_alone(room: VisitedRoom) -> None:
    refused = list[httpx.Response]()

    async def follow(browser: httpx.AsyncClient) -> None:
        answer = await browser.get("/now/events")
        refused.append(answer)

    browsers = [client(room, f"10.0.0.{number % 3}") for number in range(40)]
    async with asyncio.TaskGroup() as group:
        for browser in browsers:
            assert (await sign_in(browser, "of-a-reader")).status_code in (303, 429)
        for number in range(1100):
            group.create_task(follow(browsers[number % len(browsers)]))
        await until(lambda: len(refused) >= 1000, "most streams are refused")
        assert {answer.status_code for answer in refused} == {429}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        assert await status(room, "/healthz") == 200
        await room.sign_in("of-an-admin")
        assert await status(room) == 200
        room.end_streams()
    for browser in browsers:
        await browser.aclose()


# Sign-ins


async def test_failed_sign_ins_are_delayed_and_logged_without_the_token(
    room: VisitedRoom, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with client(room, "10.0.0.1") as guesser, client(room, "10.0.0.2") as other:
        answers = [await sign_in(guesser, f"guess-{number}") for number in range(20)]
        tried = [answer for answer in answers if answer.status_code == 401]
        assert {answer.status_code for answer in answers} == {401, 429} and len(tried) <= 6
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert "Too many" in answers[-1].text
        assert (
            await sign_in(guesser, "of-an-admin")
        ).status_code == 429  # a right guess does not help either
        assert (await sign_in(other, "of-an-admin")).status_code == 303
        assert len(re.findall(r"sign-in refused: .*10\.0\.0\.1", caplog.text)) == len(tried)
        assert "guess-" not in caplog.text and "of-an-admin" not in caplog.text
        room.clock.passed += 60
        assert (await sign_in(guesser, "guess")).status_code == 401
        assert (await sign_in(guesser, "guess")).status_code == 429
        room.clock.passed += 3600
        assert (await sign_in(guesser, "of-an-admin")).status_code == 303


async def test_addresses_of_one_ipv6_network_count_together(room: VisitedRoom) -> None:
    for number in range(20):
        async with client(room, f"2001:db8::{number:x}") as guesser:
            answer = await sign_in(guesser, "guess")
    assert answer.status_code == 429


# Cookies


@pytest.mark.parametrize(
    "foreign", ["a/b=1", "other[app]=1", "x", "=", "a=b=c", 'q="', "é=1", "berth_8780_x=1", "a" * 5000]
)
async def test_foreign_cookies_are_ignored(room: VisitedRoom, foreign: str) -> None:
    await room.sign_in("of-an-admin")
    own = "; ".join(f"{name}={value}" for name, value in room.browser.cookies.items())
    room.browser.cookies.clear()
    for cookies in (f"{foreign}; {own}", f"{own}; {foreign}"):
        headers = {b"accept": b"text/html", b"cookie": cookies.encode("latin-1")}
        answer = await room.browser.get("/", headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8780", "berth_8780"),
        ("http://localhost:8781", "berth_8781"),
        ("http://127.0.0.1", "berth_80"),
        ("https://127.0.0.1", "__Host-berth_443"),
        ("https://127.0.0.1:9443", "__Host-berth_9443"),
    ],
)
async def test_a_cookie_is_named_by_the_port_that_the_browser_uses(
    room: VisitedRoom, url: str, name: str
) -> None:
    transport = httpx.ASGITransport(room.app)
    async with httpx.AsyncClient(transport=transport, base_url=url) as browser:
        said = (await browser.get("/login")).headers["set-cookie"]
        assert said.startswith(f"{name}=")
        assert ("secure" in said.lower()) == url.startswith("https")
        assert "path=/" in said.lower() and "domain" not in said.lower()
        assert (await sign_in(browser, "of-an-admin")).status_code == 303
        assert (await browser.get("/", headers=HTML)).status_code == 200
        page = (await browser.get("/login", headers=HTML)).text
        found = re.search(r'name="form_token" value="(\w+)"', page)
        form = {"form_token": found[1] if found else "", "theme": "dark"}
        answer = await browser.post("/theme", data=form, headers=HTML)
        assert answer.headers["set-cookie"].startswith(f"{name}_theme=dark")
