"""Sign-in to the control room with a password of Keystone."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from berth.kit import Settings
from features.keystone import sign_in
from tests.support.fake_keystone import FakeKeystone
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room


@pytest.fixture
def keystone(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKeystone]:
    server = FakeKeystone()
    for name, value in server.access().auth.items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    server.people["ann"] = ("operator",)
    monkeypatch.setattr(sign_in, "CHECK_SECONDS", 0.01)
    yield server
    server.close()


@pytest.fixture
async def cloud_room(keystone: FakeKeystone) -> AsyncIterator[VisitedRoom]:
    """Yield a control room whose users are in Keystone."""
    settings = Settings().having(placement_auth="keystone", placement_cloud="envvars")
    async with a_visited_room(settings=settings) as visited:
        yield visited


ANN = {"user": "ann", "password": "s3cret", "project": "P", "domain": "Default"}


async def test_users_of_keystone_sign_in_with_a_password(
    cloud_room: VisitedRoom, keystone: FakeKeystone
) -> None:
    assert 'name="password"' in await cloud_room.page("/login")
    refused = await cloud_room.sign_in(**ANN | {"password": "wrong"})
    assert refused.status_code == 401 and "Keystone does not accept" in refused.text
    assert (await cloud_room.sign_in(**ANN)).status_code == 303
    assert "ann-name" in await cloud_room.page("/")
    keystone.status = 503
    away = await cloud_room.sign_in(**ANN)
    assert away.status_code == 503 and "temporarily unavailable" in away.text


async def test_a_reader_of_a_project_in_keystone_cannot_read_the_region(
    cloud_room: VisitedRoom, keystone: FakeKeystone
) -> None:
    keystone.people["ann"] = ("reader", "member")
    await cloud_room.sign_in(**ANN)
    assert "may not read" in await cloud_room.page("/", 403)


async def test_a_revoked_token_of_keystone_ends_its_session(
    cloud_room: VisitedRoom, keystone: FakeKeystone
) -> None:
    await cloud_room.sign_in(**ANN)
    assert "ann-name" in await cloud_room.page("/")
    keystone.known.clear()
    cloud_room.clock.passed += 61.0
    while (answer := await cloud_room.browser.get("/", headers=HTML)).status_code == 200:
        await asyncio.sleep(0)
    assert answer.headers["location"] == "/login"
