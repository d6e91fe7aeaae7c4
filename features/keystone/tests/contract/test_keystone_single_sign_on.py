"""Sign-in to the control room by Keystone's WebSSO, also with forged, late and incomplete forms."""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from berth.kit import Settings
from tests.support.fake_keystone import FakeKeystone
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room

ROOM = "https://127.0.0.1:8780"
OURS = f"{ROOM}/login/sso"
SETTINGS = {"placement_auth": "keystone", "placement_cloud": "envvars", "control_room_sso": "openid"}


@pytest.fixture
def keystone(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKeystone]:
    server = FakeKeystone()
    for name, value in server.access().auth.items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    server.federated, server.projects = "ann", {"p1": ("operator",)}
    server.trusted_dashboards.add(OURS)
    yield server
    server.close()


@pytest.fixture
async def room(keystone: FakeKeystone) -> AsyncIterator[VisitedRoom]:
    async with a_visited_room(settings=Settings().having(**SETTINGS)) as visited:
        async with visited.visitor(url=ROOM) as over_tls:
            yield over_tls


def origin_of(keystone: FakeKeystone) -> str:
    return f"http://127.0.0.1:{keystone.port}"


async def begin(room: VisitedRoom) -> str:
    """Follow the link on the page to sign in; return the address of Keystone's page."""
    assert 'href="/login/sso/start"' in await room.page("/login")
    answer = await room.browser.get("/login/sso/start", headers=HTML | {"sec-fetch-site": "same-origin"})
    assert answer.status_code == 303
    return answer.headers["location"]


async def token_of(address: str) -> str:
    """Open Keystone's page; return the token in its form, which is for our address."""
    async with httpx.AsyncClient() as browser:
        page = (await browser.get(address)).text
    found = re.search(r'action="(\S+)"[\s\S]*name="token" id="token" value="(\S+)"', page)
    assert found is not None and found[1] == OURS, page
    return found[2]


async def post_token(room: VisitedRoom, token: str, origin: str, **headers: str) -> httpx.Response:
    """Send the form of Keystone's page: a browser then sends only the cookies with SameSite=None."""
    unrestricted = [
        f"{cookie.name}={cookie.value}"
        for cookie in room.browser.cookies.jar
        if str(cookie.get_nonstandard_attr("SameSite")).lower() == "none" and cookie.secure
    ]
    headers = {"origin": origin, "sec-fetch-site": "cross-site", "cookie": "; ".join(unrestricted)} | headers
    async with room.visitor(url=ROOM) as foreign:
        answer = await foreign.browser.post("/login/sso", data={"token": token}, headers=HTML | headers)
    room.browser.cookies.extract_cookies(answer)
    return answer


async def sign_on(room: VisitedRoom, keystone: FakeKeystone) -> httpx.Response:
    return await post_token(room, await token_of(await begin(room)), origin_of(keystone))


async def is_signed_in(room: VisitedRoom) -> bool:
    answer = await room.browser.get("/", headers=HTML)
    return answer.status_code == 200 and "ann-name" in answer.text


async def test_a_user_signs_in_for_the_only_project(room: VisitedRoom, keystone: FakeKeystone) -> None:
    address = await begin(room)
    assert address.startswith(f"{origin_of(keystone)}/v3/auth/OS-FEDERATION/websso/openid?")
    assert parse_qs(urlsplit(address).query) == {"origin": [OURS]}
    answer = await post_token(room, await token_of(address), origin_of(keystone))
    # browsers send the Strict cookie of the new session only if our page loads the next, not a redirect
    assert answer.status_code == 200 and 'http-equiv="refresh"' in answer.text
    assert await is_signed_in(room)
    [rescoping] = [asked["auth"] for asked in keystone.asked if "token" in asked["auth"]["identity"]]
    assert rescoping["scope"] == {"project": {"id": "p1"}}


async def test_the_cookie_that_returns_from_keystone_is_for_tls_and_ten_minutes(room: VisitedRoom) -> None:
    answer = await room.browser.get("/login/sso/start", headers=HTML)
    [cookie] = [text.lower() for text in answer.headers.get_list("set-cookie") if "_sso=" in text]
    assert cookie.startswith("__host-berth_8780_sso=")
    for attribute in ("secure", "httponly", "samesite=none", "path=/", "max-age=600"):
        assert attribute in cookie


async def test_a_user_of_several_projects_picks_one(room: VisitedRoom, keystone: FakeKeystone) -> None:
    keystone.projects = {"p1": ("operator",), "p2": ("admin",)}
    answer = await sign_on(room, keystone)
    assert answer.status_code == 200
    assert re.findall(r'<option value="(\w+)">(\w+) \(domain d\)', answer.text) == [
        ("p1", "P1"),
        ("p2", "P2"),
    ]
    assert not await is_signed_in(room)
    assert (await room.send("/login/sso/project", project="p3")).status_code == 403
    assert (await room.send("/login/sso/project", project="p2")).headers["location"] == "/"
    assert await is_signed_in(room)
    assert "read only" not in await room.page("/")
    again = await room.send("/login/sso/project", project="p1")
    assert again.status_code == 403 and "took too long" in again.text


async def test_a_project_is_picked_within_ten_minutes_by_the_same_browser(
    room: VisitedRoom, keystone: FakeKeystone
) -> None:
    keystone.projects = {"p1": ("operator",), "p2": ("admin",)}
    await sign_on(room, keystone)
    async with room.visitor(url=ROOM) as other:
        assert (await other.send("/login/sso/project", project="p1")).status_code == 403
    room.clock.now += 601
    assert (await room.send("/login/sso/project", project="p1")).status_code == 403


async def test_the_session_ends_with_the_token(room: VisitedRoom, keystone: FakeKeystone) -> None:
    token = await token_of(await begin(room))
    keystone.know(token, name="ann", scope={}, seconds=1e9)
    keystone.known[token]["expires_at"] = "2027-01-15T09:00:00Z"
    room.clock.now = 1_800_000_000.0  # an hour before the token's expiry
    await post_token(room, token, origin_of(keystone))
    assert await is_signed_in(room)
    room.clock.now += 3601
    assert not await is_signed_in(room)


# Forms of other sign-ins


@pytest.mark.parametrize("origin", ["https://evil.example", "null", ROOM, ""])
async def test_a_token_from_another_origin_is_refused(
    room: VisitedRoom, keystone: FakeKeystone, origin: str
) -> None:
    token = await token_of(await begin(room))
    assert (await post_token(room, token, origin)).status_code == 403
    assert not await is_signed_in(room)


@pytest.mark.parametrize("cookie", ["", "9999999999." + "0" * 64, "x", "9999999999"])
async def test_a_token_without_the_cookie_of_this_browser_is_refused(
    room: VisitedRoom, keystone: FakeKeystone, cookie: str
) -> None:
    token = await token_of(await begin(room))
    forged = {"cookie": f"__Host-berth_8780_sso={cookie}"}
    answer = await post_token(room, token, origin_of(keystone), **forged)
    assert answer.status_code == 403 and "did not begin in this browser" in answer.text
    assert keystone.asked == []  # the token was not sent to Keystone


async def test_a_token_that_comes_after_ten_minutes_is_refused(
    room: VisitedRoom, keystone: FakeKeystone
) -> None:
    token = await token_of(await begin(room))
    room.clock.now += 601
    assert (await post_token(room, token, origin_of(keystone))).status_code == 403


async def test_a_forged_form_does_not_end_the_session_of_the_browser(
    room: VisitedRoom, keystone: FakeKeystone
) -> None:
    await sign_on(room, keystone)
    for origin in (origin_of(keystone), "https://evil.example"):
        refused = await post_token(room, "forged", origin)
        assert (refused.status_code, refused.headers.get("set-cookie")) == (403, None)
    assert await is_signed_in(room)


async def test_a_sign_in_that_another_site_begins_is_refused(room: VisitedRoom) -> None:
    headers = HTML | {"sec-fetch-site": "cross-site"}
    assert (await room.browser.get("/login/sso/start", headers=headers)).status_code == 403


# Tokens and users that Keystone refuses


@pytest.mark.parametrize("token", ["", "forged", "töken", "a\r\nb", "expired"])
async def test_an_invalid_token_is_refused_and_counted_as_a_failure(
    room: VisitedRoom, keystone: FakeKeystone, token: str
) -> None:
    keystone.know("expired", scope={}, seconds=-5)
    await begin(room)
    answers = [await post_token(room, token, origin_of(keystone)) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert "does not accept the token" in answers[0].text
    assert not await is_signed_in(room)


async def test_a_user_without_a_project_is_refused(room: VisitedRoom, keystone: FakeKeystone) -> None:
    keystone.projects = {}
    answer = await sign_on(room, keystone)
    assert answer.status_code == 403 and "no project" in answer.text
    assert not await is_signed_in(room)


async def test_a_user_without_a_role_on_the_project_is_refused(
    room: VisitedRoom, keystone: FakeKeystone
) -> None:
    keystone.projects = {"p1": ()}
    answer = await sign_on(room, keystone)
    assert answer.status_code == 401 and "does not let your user into the project P1" in answer.text
    assert not await is_signed_in(room)


async def test_while_keystone_does_not_answer_the_page_says_so(
    room: VisitedRoom, keystone: FakeKeystone
) -> None:
    token = await token_of(await begin(room))
    keystone.read_status = 503
    away = await post_token(room, token, origin_of(keystone))
    assert away.status_code == 503 and "temporarily unavailable" in away.text
    keystone.read_status = 200
    assert (await post_token(room, token, origin_of(keystone))).status_code == 200  # the form sent again


async def test_no_token_is_logged_or_shown(
    room: VisitedRoom, keystone: FakeKeystone, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for library in ("httpx", "httpcore"):  # as berth.logs sets them
        caplog.set_level(logging.WARNING, library)
    keystone.projects = {"p1": ("operator",), "p2": ("admin",)}
    answer = await sign_on(room, keystone)
    picked = await room.send("/login/sso/project", project="p1")
    await post_token(room, "forged-token", origin_of(keystone))
    for shown in (caplog.text, answer.text, picked.text, str(picked.headers), str(answer.headers)):
        for token in ("unscoped-", "forged-token", "token-"):
            assert token not in shown


# Settings


async def test_without_tls_single_sign_on_is_not_offered(room: VisitedRoom) -> None:
    async with room.visitor(url="http://127.0.0.1:8780") as plain:
        page = await plain.page("/login")
        assert "needs HTTPS" in page and "/login/sso/start" not in page
        assert "needs HTTPS" in await plain.page("/login/sso/start", 403)


async def test_single_sign_on_is_off_by_default(keystone: FakeKeystone) -> None:
    settings = Settings().having(**SETTINGS | {"control_room_sso": ""})
    async with a_visited_room(settings=settings) as plain, plain.visitor(url=ROOM) as visited:
        assert "ingle sign-on" not in await visited.page("/login")
        await visited.page("/login/sso/start", 404)
        assert (await post_token(visited, "t", origin_of(keystone))).status_code == 403
        assert (await visited.send("/login/sso", token="t")).status_code == 404
