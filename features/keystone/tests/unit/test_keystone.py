"""Authentication by Keystone tokens: what is asked, kept, refused, and what an unreachable Keystone means."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from time import time

import pytest

from bus.clock import Clock
from bus.http import CLIENT_ADDRESS
from features.keystone import tokens as module
from features.keystone.tokens import GUESSES, GUESSES_SECONDS, KeystoneTokens
from ironic_sync.extension import KeystoneUnavailable
from placement_worker.testing import AccessPolicy, Identity
from tests.support.fake_keystone import SECRET, FakeKeystone


class ShiftedClock:
    """Ahead of the real time by what it was advanced; its monotonic time stands still otherwise."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.clock = Clock(now=lambda: time() + self._ahead, monotonic=lambda: 1000.0 + self._ahead)

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def keystone() -> Iterator[FakeKeystone]:
    server = FakeKeystone()
    yield server
    server.answering.set()
    server.close()


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def tokens(keystone: FakeKeystone, clock: ShiftedClock) -> AsyncIterator[KeystoneTokens]:
    async with KeystoneTokens(keystone.access(), clock.clock) as tokens:
        yield tokens


async def identity(tokens: KeystoneTokens, token: str, **headers: str) -> Identity | None:
    return await tokens({"x-auth-token": token} | headers)


@pytest.mark.parametrize(
    ("scope", "named"),
    [({"system": {"all": True}}, "system"), ({"domain": {"id": "d", "name": "D"}}, "domain"), ({}, "none")],
)
async def test_a_token_of_a_system_domain_or_nothing_permits_nothing(
    keystone: FakeKeystone, tokens: KeystoneTokens, scope: dict[str, object], named: str
) -> None:
    keystone.know("t", "admin", scope=scope)
    found = await identity(tokens, "t")
    assert found is not None and found.scope == named
    assert not AccessPolicy().allows("placement:usages", found, {"project_id": "p"})


async def test_an_answer_is_used_for_a_minute(
    keystone: FakeKeystone, tokens: KeystoneTokens, clock: ShiftedClock
) -> None:
    keystone.know("ann", "reader")
    for _ in range(3):
        assert await identity(tokens, "ann")
    clock.advance(59.9)
    assert await identity(tokens, "ann")
    assert keystone.validated == ["ann"]
    del keystone.known["ann"]  # revoked
    clock.advance(0.2)
    assert await identity(tokens, "ann") is None


async def test_an_answer_is_not_used_longer_than_the_token_is_valid(
    keystone: FakeKeystone, tokens: KeystoneTokens, clock: ShiftedClock
) -> None:
    keystone.know("ann", "reader", seconds=20)
    assert await identity(tokens, "ann")
    clock.advance(21)
    assert await identity(tokens, "ann") is None  # by our clock, whatever Keystone's says


async def test_requests_that_arrive_together_share_an_answer(
    keystone: FakeKeystone, tokens: KeystoneTokens
) -> None:
    keystone.know("ann", "reader")
    found = await asyncio.gather(*(identity(tokens, "ann") for _ in range(50)))
    assert all(found)
    assert keystone.validated == ["ann"]


async def test_a_cancelled_request_leaves_the_others_their_answer(
    keystone: FakeKeystone, tokens: KeystoneTokens
) -> None:
    keystone.know("ann", "reader")
    keystone.answering.clear()
    first, second = (asyncio.create_task(identity(tokens, "ann")) for _ in range(2))
    while not keystone.validated:
        await asyncio.sleep(0)
    first.cancel()
    keystone.answering.set()
    assert await second
    assert len(keystone.validated) == 2


async def test_an_expired_token_is_not_found_by_its_name_in_the_cache(
    keystone: FakeKeystone, tokens: KeystoneTokens
) -> None:
    keystone.know("nova", "service")
    keystone.know("t", "admin")
    keystone.expired.add("t")
    assert await identity(tokens, "t", **{"x-service-token": "nova"})
    assert await identity(tokens, "t expired") is None
    assert await identity(tokens, "t") is None


async def test_many_unknown_tokens_from_one_address_are_not_asked_about(
    keystone: FakeKeystone, tokens: KeystoneTokens, clock: ShiftedClock
) -> None:
    keystone.know("known", "reader")
    keystone.know("new", "reader")
    assert await identity(tokens, "known")
    for number in range(GUESSES):
        assert await identity(tokens, f"guess-{number}") is None
    asked = len(keystone.validated)
    for token in ("another-guess", "new"):
        with pytest.raises(KeystoneUnavailable):
            await identity(tokens, token)
    assert await identity(tokens, "known"), "its answer is cached"
    assert len(keystone.validated) == asked
    elsewhere = CLIENT_ADDRESS.set("192.0.2.1")
    assert await identity(tokens, "new")
    CLIENT_ADDRESS.reset(elsewhere)
    clock.advance(GUESSES_SECONDS + 0.1)
    assert await identity(tokens, "another-guess") is None


@pytest.mark.parametrize("token", ["", "  ", "a\tb", "töken"])
async def test_a_malformed_token_is_refused_without_a_query(
    keystone: FakeKeystone, tokens: KeystoneTokens, token: str
) -> None:
    assert await identity(tokens, token) is None
    assert keystone.validated == []


async def test_few_answers_are_kept(
    keystone: FakeKeystone, tokens: KeystoneTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 2)
    for token in ("a", "b", "c"):
        keystone.know(token, "reader")
        await identity(tokens, token)
    await identity(tokens, "c")
    await identity(tokens, "a")
    assert keystone.validated == ["a", "b", "c", "a"]


# Tokens of services


@pytest.mark.parametrize(
    ("role", "accepted"), [("service", True), ("member", False)], ids=["role service", "another role"]
)
async def test_an_expired_token_is_accepted_with_that_of_a_service(
    keystone: FakeKeystone, tokens: KeystoneTokens, role: str, accepted: bool
) -> None:
    keystone.know("nova", role)
    keystone.know("ann", "reader", seconds=-5)
    assert await identity(tokens, "ann") is None
    found = await identity(tokens, "ann", **{"x-service-token": "nova"})
    assert (found is not None) == accepted


async def test_with_an_invalid_token_of_a_service_a_request_is_refused(
    keystone: FakeKeystone, tokens: KeystoneTokens
) -> None:
    keystone.know("ann", "reader")
    assert await identity(tokens, "ann", **{"x-service-token": "forged"}) is None


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_without_an_answer_of_keystone_every_request_is_refused(
    keystone: FakeKeystone,
    tokens: KeystoneTokens,
    status: int,
    clock: ShiftedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keystone.know("ann", "reader")
    await identity(tokens, "ann")
    keystone.read_status = status
    assert await identity(tokens, "ann")  # still known
    clock.advance(61)
    with pytest.raises(KeystoneUnavailable, match="temporarily unavailable"):
        await identity(tokens, "ann")
    assert str(status) in caplog.text
    keystone.read_status = 200
    assert await identity(tokens, "ann")


async def test_refused_credentials_of_berth_are_not_reported_as_the_clients(
    keystone: FakeKeystone, tokens: KeystoneTokens, caplog: pytest.LogCaptureFixture
) -> None:
    keystone.status = 401
    caplog.set_level(logging.DEBUG)
    with pytest.raises(KeystoneUnavailable):
        await identity(tokens, "geheim")
    assert "see placement_cloud" in caplog.text
    assert SECRET not in caplog.text and "geheim" not in caplog.text


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"user": "ann", "password": SECRET, "project": "p", "domain": "Default"}, "password"),
        ({"application_credential": "id", "secret": SECRET}, "application_credential"),
    ],
)
async def test_a_user_signs_in_with_a_password_or_an_application_credential(
    keystone: FakeKeystone, tokens: KeystoneTokens, fields: dict[str, str], method: str
) -> None:
    assert await tokens.sign_in(fields) == "token-1"
    [asked] = keystone.asked
    assert asked["auth"]["identity"]["methods"] == [method]
    assert ("scope" in asked["auth"]) == (method == "password")
    keystone.status = 401
    assert await tokens.sign_in(fields) is None
    keystone.status = 503
    with pytest.raises(KeystoneUnavailable):
        await tokens.sign_in(fields)
