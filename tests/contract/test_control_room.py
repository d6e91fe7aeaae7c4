"""The control room's sign-in, form tokens and response headers, and the page Now."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from berth.problems.kinds import BROKER_DISK
from berth.problems.reading import ProblemList
from berth.settings import Settings
from bus.messages import Attempt, BuildEnded, BuildUnplaceable, HostFailed, HostReported, SchedulerAlive
from bus.problems import KnownProblem
from bus.reports import HostState
from tests.support.ids import uid
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room
from tests.support.waiting import in_time, until

ADMIN = '{token = "of-an-admin", user = "alice", project = "p", roles = ["admin"]}'
READER = '{token = "of-a-reader", user = "bob", project = "p", roles = ["reader"]}'
MEMBER = '{token = "of-a-member", user = "carol", project = "p", roles = ["member"]}'
STREAMS = ("/now/events", "/builds/events", "/bus/events", "/hosts/events")


@pytest.fixture
async def room() -> AsyncIterator[VisitedRoom]:
    async with a_visited_room() as visited:
        yield visited


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "tokens.toml", ADMIN, READER, MEMBER)


@pytest.fixture
async def token_room(tokens: Path) -> AsyncIterator[VisitedRoom]:
    settings = Settings().having(placement_auth="tokens", placement_tokens=str(tokens))
    async with a_visited_room(settings=settings) as visited:
        yield visited


def write_tokens(file: Path, *tokens: str) -> Path:
    file.write_text(f"tokens = [{', '.join(tokens)}]")
    return file


async def status(room: VisitedRoom, path: str = "/", **headers: str) -> int:
    return (await room.browser.get(path, headers={**HTML, **headers})).status_code


# Headers of every response


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/room.css", "/static/none", "/healthz"])
async def test_no_answer_allows_resources_of_other_sites(room: VisitedRoom, path: str) -> None:
    answer = await room.browser.get(path, headers=HTML)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"


async def test_a_request_with_a_foreign_host_name_is_refused(room: VisitedRoom) -> None:
    for name in ("evil.example", "evil.example:8780", "127.0.0.1.evil.example:8780"):
        assert (await room.browser.get("/", headers={"host": name})).status_code == 421
    for name in ("localhost:8780", "127.0.0.1", "[::1]:8780"):
        assert (await room.browser.get("/", headers={"host": name})).status_code == 200


async def test_the_sign_in_page_says_that_no_name_is_checked_without_tokens(
    room: VisitedRoom, token_room: VisitedRoom
) -> None:
    page = await room.page("/login")
    assert "No password is checked here" in page and "may sign in with any name" in page
    assert 'type="password"' not in page
    assert "No password" not in await token_room.page("/login")


# Forms


async def test_a_form_requires_the_token_of_its_session(room: VisitedRoom) -> None:
    await room.page("/")
    for given in ("", "0" * 64, "é"):
        answer = await room.send("/theme", theme="dark", form_token=given)
        assert (answer.status_code, "not of your session" in answer.text) == (403, True)
    other = await room.form_token()
    room.browser.cookies.clear()
    assert (await room.send("/theme", theme="dark", form_token=other)).status_code == 403
    assert (await room.send("/theme", theme="dark", back="/login")).headers["location"] == "/login"
    assert 'data-theme="dark"' in await room.page("/")


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_a_form_from_another_site_is_refused(room: VisitedRoom, headers: dict[str, str]) -> None:
    answer = await room.send("/theme", theme="dark", headers=headers)
    assert (answer.status_code, "another site" in answer.text) == (403, True)


async def test_a_form_redirects_only_to_pages_of_this_site(room: VisitedRoom) -> None:
    for back in ("https://evil.example/", "//evil.example/", "/\\evil.example"):
        assert (await room.send("/theme", theme="auto", back=back)).headers["location"] == "/"


# The page Now


def an_end(number: int, **given: Any) -> BuildEnded:
    attempt = Attempt(host="h1", outcome="built", started=100.0, ended=100.25)
    fields = {"cell": "c1", "status": "active", "host": "h1", "attempts": (attempt,), **given}
    return BuildEnded(build=uid(number), request=uid(number, "b"), **fields)


async def test_the_first_page_has_the_list_of_problems(room: VisitedRoom) -> None:
    """No worker runs here."""
    page = await room.page("/?wait=1")
    assert "No answer from placement and scheduler." in page and "No known problems" not in page
    assert "<code>systemctl status</code>" in page and '<a href="/bus">Details</a>' in page


async def test_a_list_of_problems_that_was_read_long_ago_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present: list[KnownProblem] = []

    async def read(_: ProblemList) -> list[KnownProblem]:
        return [*present]

    monkeypatch.setattr(ProblemList, "read", read)
    async with a_visited_room() as room:
        assert "No known problems." in await room.page("/")
        present.append(BROKER_DISK.problem("RabbitMQ"))
        room.clock.now += 60.0
        room.clock.passed += 60.0
        page = await room.page("/")
        assert BROKER_DISK.says in page and "No known problems" not in page


async def test_received_events_appear_on_the_first_page(room: VisitedRoom) -> None:
    history = room.events.history
    await room.bus.publish(an_end(1))
    await room.bus.publish(an_end(2, reply_to="somebody-else"))
    await room.bus.publish(an_end(3, status="error", reason="<b>disk</b> 7 is full"))
    await room.bus.publish(
        BuildUnplaceable(request=uid(9, "b"), instances=(uid(4), uid(5)), reason="no host")
    )
    failed = HostFailed(root=uid(1, "a"), host="h1", agent="a1", cell="c1", build=uid(3), attempt=1)
    await room.bus.publish(failed, failed)
    hosts = (HostState(root=uid(1, "a"), host="h1"), HostState(root=uid(2, "a"), host="h2"))
    await room.bus.publish(HostReported(cell="c1", agent="a1", sequence=1, hosts=hosts))
    await room.bus.publish(SchedulerAlive(scheduler="s1"))
    await until(lambda: len(history.recent) == 5 and room.events.heartbeats.schedulers(0.0))
    await until(lambda: room.events.heartbeats.agents(0.0) and history._ticks[-1].host_failures)
    query = {end.build: end for end in history.recent}
    assert (query[uid(1)].status, query[uid(1)].seconds) == ("active", 0.25)
    room.clock.now += 10.0
    page = await room.page("/?wait=1")
    assert "&lt;b&gt;disk&lt;/b&gt; … is full" in page
    assert "scheduler s1" in page


# Ends of sessions


def cookies_of(room: VisitedRoom) -> str:
    return "; ".join(f"{name}={value}" for name, value in room.browser.cookies.items())


async def test_signing_out_ends_the_session_on_the_server(token_room: VisitedRoom) -> None:
    await token_room.sign_in("of-an-admin")
    cookie = cookies_of(token_room)
    assert await status(token_room) == 200
    await token_room.send("/logout")
    token_room.browser.cookies.clear()
    assert await status(token_room, "/", cookie=cookie) == 303


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
    token_room: VisitedRoom, tokens: Path, then: tuple[str, ...]
) -> None:
    await token_room.sign_in("of-an-admin")
    assert await status(token_room) == 200
    write_tokens(tokens, *then)
    assert await status(token_room) == 303
    write_tokens(tokens, ADMIN, READER)
    assert await status(token_room) == 303  # the session has ended permanently
    assert (await token_room.sign_in("of-a-reader")).status_code == 303
    assert await status(token_room) == 200


async def test_a_session_ends_after_twelve_hours(token_room: VisitedRoom) -> None:
    await token_room.sign_in("of-an-admin")
    token_room.clock.now += 12 * 3600 - 1
    assert await status(token_room) == 200
    token_room.clock.now += 2
    assert await status(token_room) == 303


async def test_the_oldest_of_many_sessions_of_a_user_ends(token_room: VisitedRoom) -> None:
    await token_room.sign_in("of-an-admin")
    for _ in range(50):
        async with token_room.visitor() as other:
            await other.sign_in("of-a-reader")
    assert await status(token_room) == 200  # sessions of another user
    for _ in range(50):
        async with token_room.visitor() as other:
            await other.sign_in("of-an-admin")
    assert await status(token_room) == 303


async def sign_out(token_room: VisitedRoom, tokens: Path) -> None:
    await token_room.send("/logout")


async def remove_the_token(token_room: VisitedRoom, tokens: Path) -> None:
    write_tokens(tokens, READER)


async def pass_twelve_hours(token_room: VisitedRoom, tokens: Path) -> None:
    token_room.clock.now += 12 * 3600 + 1


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("end", [sign_out, remove_the_token, pass_twelve_hours])
async def test_open_event_streams_end_with_their_session(
    token_room: VisitedRoom, tokens: Path, path: str, end: Callable[[VisitedRoom, Path], Any]
) -> None:
    await token_room.sign_in("of-an-admin")
    stream = asyncio.create_task(token_room.browser.get(path))
    await until(lambda: bool(token_room.open_streams()), "the stream is open")
    await end(token_room, tokens)
    answer = await in_time(stream)
    assert "event: signed-out" in answer.text
    assert not token_room.open_streams()


async def test_many_streams_of_one_reader_do_not_block_other_requests(token_room: VisitedRoom) -> None:
    refused = list[httpx.Response]()

    async def follow(visitor: VisitedRoom) -> None:
        refused.append(await visitor.browser.get("/now/events"))

    async with AsyncExitStack() as stack:
        visitors = [
            await stack.enter_async_context(token_room.visitor(f"10.0.0.{number % 3}"))
            for number in range(40)
        ]
        for visitor in visitors:
            assert (await visitor.sign_in("of-a-reader")).status_code in (303, 429)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for number in range(1100):
            group.create_task(follow(visitors[number % len(visitors)]))
        await until(lambda: len(refused) >= 1000, "most streams are refused")
        assert {answer.status_code for answer in refused} == {429}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        assert await status(token_room, "/healthz") == 200
        await token_room.sign_in("of-an-admin")
        assert await status(token_room) == 200
        token_room.end_streams()


# Sign-ins


async def test_failed_sign_ins_are_delayed_and_logged_without_the_token(
    token_room: VisitedRoom, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with token_room.visitor("10.0.0.1") as guesser, token_room.visitor("10.0.0.2") as other:
        answers = [await guesser.sign_in(f"guess-{number}") for number in range(20)]
        tried = [answer for answer in answers if answer.status_code == 401]
        assert {answer.status_code for answer in answers} == {401, 429} and len(tried) <= 6
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert "Too many" in answers[-1].text
        assert (await guesser.sign_in("of-an-admin")).status_code == 429  # even with a valid token
        assert (await other.sign_in("of-an-admin")).status_code == 303
        assert len(re.findall(r"sign-in refused: .*10\.0\.0\.1", caplog.text)) == len(tried)
        assert "guess-" not in caplog.text and "of-an-admin" not in caplog.text
        token_room.clock.passed += 60
        assert (await guesser.sign_in("guess")).status_code == 401
        assert (await guesser.sign_in("guess")).status_code == 429
        token_room.clock.passed += 3600
        assert (await guesser.sign_in("of-an-admin")).status_code == 303


async def test_addresses_of_one_ipv6_network_count_together(token_room: VisitedRoom) -> None:
    for number in range(20):
        async with token_room.visitor(f"2001:db8::{number:x}") as guesser:
            answer = await guesser.sign_in("guess")
    assert answer.status_code == 429


# Cookies


@pytest.mark.parametrize("foreign", ["a/b=1", 'q="', "é=1", "berth_8780_x=1"])
async def test_foreign_cookies_are_ignored(token_room: VisitedRoom, foreign: str) -> None:
    await token_room.sign_in("of-an-admin")
    own = cookies_of(token_room)
    token_room.browser.cookies.clear()
    for cookies in (f"{foreign}; {own}", f"{own}; {foreign}"):
        headers = {b"accept": b"text/html", b"cookie": cookies.encode("latin-1")}
        answer = await token_room.browser.get("/", headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("url", "name"), [("http://localhost:8781", "berth_8781"), ("https://127.0.0.1", "__Host-berth_443")]
)
async def test_a_cookie_is_named_by_the_port_that_the_browser_uses(
    token_room: VisitedRoom, url: str, name: str
) -> None:
    async with token_room.visitor(url=url) as visitor:
        reply = (await visitor.browser.get("/login")).headers["set-cookie"]
        assert reply.startswith(f"{name}=")
        assert ("secure" in reply.lower()) == url.startswith("https")
        assert "httponly" in reply.lower() and "samesite=strict" in reply.lower()
        assert "path=/" in reply.lower() and "domain" not in reply.lower()
        assert (await visitor.sign_in("of-an-admin")).status_code == 303
        assert await status(visitor) == 200
