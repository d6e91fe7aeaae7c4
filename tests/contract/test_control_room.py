"""The control room's sign-in, form tokens and response headers, and the page Now."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from berth.settings import Settings
from bus.messages import Attempt, BuildEnded, BuildUnplaceable, HostFailed, HostReported, SchedulerAlive
from bus.reports import HostState
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room
from tests.support.waiting import in_time, until

TOKENS = """
tokens = [
  {token = "of-an-admin", user = "alice", project = "p", roles = ["admin"]},
  {token = "of-a-reader", user = "bob", project = "p", roles = ["reader"]},
  {token = "of-a-member", user = "carol", project = "p", roles = ["member"]},
]
"""


@pytest.fixture
async def room() -> AsyncIterator[VisitedRoom]:
    async with a_visited_room() as visited:
        yield visited


@pytest.fixture
async def closed_room(tmp_path: Path) -> AsyncIterator[VisitedRoom]:
    """One with tokens."""
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    settings = Settings().having(placement_auth="tokens", placement_tokens=str(file))
    async with a_visited_room(settings=settings) as visited:
        yield visited


# What every answer carries


@pytest.mark.parametrize("path", ["/", "/login", "/nowhere", "/static/room.css", "/static/none", "/healthz"])
async def test_no_answer_allows_resources_of_other_sites(room: VisitedRoom, path: str) -> None:
    answer = await room.browser.get(path, headers=HTML)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("path", ["/", "/login", "/nowhere"])
async def test_no_page_has_inline_scripts_or_styles(room: VisitedRoom, path: str) -> None:
    page = (await room.browser.get(path, headers=HTML)).text
    assert "style=" not in page
    assert "<style" not in page
    assert " on" + "click" not in page
    assert page.count("<script") == page.count('<script src="/static/')
    assert "http://" not in page and "https://" not in page


async def test_the_session_cookie_is_restricted_to_this_site(room: VisitedRoom) -> None:
    said = (await room.browser.get("/")).headers["set-cookie"].lower()
    assert "httponly" in said and "samesite=strict" in said
    assert "set-cookie" not in (await room.browser.get("/")).headers  # once is enough


async def test_a_request_with_a_foreign_host_name_is_refused(room: VisitedRoom) -> None:
    for name in ("evil.example", "evil.example:8780", "127.0.0.1.evil.example:8780"):
        assert (await room.browser.get("/", headers={"host": name})).status_code == 421
    for name in ("localhost:8780", "127.0.0.1", "[::1]:8780"):
        assert (await room.browser.get("/", headers={"host": name})).status_code == 200


async def test_a_browser_reads_static_files_once(room: VisitedRoom) -> None:
    first = await room.browser.get("/static/room.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    again = await room.browser.get("/static/room.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await room.browser.get("/static/..%2fworker.py")).status_code == 404


async def test_without_a_token_file_every_client_may_read_and_admin_may_act(room: VisitedRoom) -> None:
    assert "Sign in" in await room.page("/")
    assert (await room.sign_in("somebody")).status_code == 303
    assert "read only" in await room.page("/")
    assert (await room.sign_in("admin")).status_code == 303
    page = await room.page("/")
    assert "admin" in page and "read only" not in page


async def test_with_a_token_file_reading_requires_a_token(closed_room: VisitedRoom) -> None:
    answer = await closed_room.browser.get("/", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert (await closed_room.browser.get("/now/events")).status_code == 401
    refused = await closed_room.sign_in("of-nobody")
    assert refused.status_code == 401
    assert "This token is not known here." in refused.text


@pytest.mark.parametrize(
    ("token", "status", "says"),
    [("of-an-admin", 200, "alice"), ("of-a-reader", 200, "read only"), ("of-a-member", 403, "may not read")],
)
async def test_a_token_permits_what_its_role_permits(
    closed_room: VisitedRoom, token: str, status: int, says: str
) -> None:
    assert (await closed_room.sign_in(token)).status_code == 303
    assert says in await closed_room.page("/", status)


async def test_signing_out_ends_the_session(closed_room: VisitedRoom) -> None:
    await closed_room.sign_in("of-an-admin")
    await closed_room.page("/")
    assert (await closed_room.send("/logout")).status_code == 303
    assert (await closed_room.browser.get("/", headers=HTML)).status_code == 303


@pytest.mark.parametrize("cookie", ["", "x", ".", "a" * 32, "A" * 33, "alice", "eyJ1c2VyIjogImFkbWluIn0.00"])
async def test_a_cookie_that_the_server_did_not_issue_is_no_session(
    closed_room: VisitedRoom, cookie: str
) -> None:
    cookies = {"cookie": f"berth_8780={cookie}"}
    assert (await closed_room.browser.get("/now/events", headers=cookies)).status_code == 401


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


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
async def test_a_form_from_another_site_is_refused(room: VisitedRoom, headers: dict[str, str]) -> None:
    answer = await room.send("/theme", theme="dark", headers=headers)
    assert (answer.status_code, "another site" in answer.text) == (403, True)


async def test_a_form_redirects_only_to_pages_of_this_site(room: VisitedRoom) -> None:
    for back in ("https://evil.example/", "//evil.example/", "/\\evil.example"):
        assert (await room.send("/theme", theme="auto", back=back)).headers["location"] == "/"


async def test_a_large_form_is_refused(room: VisitedRoom) -> None:
    assert (await room.send("/theme", theme="x" * 100_000)).status_code == 413


async def test_errors_are_shown_as_pages_with_a_reason(room: VisitedRoom) -> None:
    assert "There is no such page" in await room.page("/nowhere", 404)
    assert (await room.browser.put("/", headers={"content-length": "0"})).status_code == 405


# Now


async def test_the_first_page_names_workers_that_do_not_answer(room: VisitedRoom) -> None:
    page = await room.page("/?wait=1")
    assert "placement does not answer: no consumer; it is not running" in page
    assert "the conductor of cell c1 does not answer" in page
    assert "Nothing in the last ten minutes." in page


def an_end(number: int, **given: Any) -> BuildEnded:
    attempt = Attempt(host="h1", outcome="built", started=100.0, ended=100.25)
    fields = {"cell": "c1", "status": "active", "host": "h1", "attempts": (attempt,), **given}
    return BuildEnded(build=uid(number), request=uid(number, "b"), **fields)


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


async def test_the_first_page_lists_the_cells_of_placement() -> None:
    async with a_placement("sqlite+aiosqlite://") as placement:
        assert await report(placement, a_report(1), a_report(2, cell="c2")) == ["", ""]

        async with a_visited_room(silent_placement(placement, ("c1", "c2")), answered=("cells",)) as room:
            page = await room.page("/?wait=1")
    assert "placement does not answer" not in page
    assert '<th scope="row">c2</th><td class="n">1</td>' in page


async def test_the_first_page_is_updated_until_the_control_room_ends(room: VisitedRoom) -> None:
    room.end_streams()
    answer = await in_time(room.browser.get("/now/events"))
    assert answer.headers["content-type"].startswith("text/event-stream")
