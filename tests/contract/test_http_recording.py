"""The audit trail of the Placement API: refusals, missing tokens, and an unreachable broker."""

from collections.abc import AsyncIterator

import pytest

from bus.audit_trail import ActRecord, ActsRecorded
from bus.clock import Clock
from bus.errors import Unavailable
from bus.vocabulary import Message
from placement_worker.http.access import AccessPolicy
from placement_worker.http.recording import RecordedRequests
from tests.support.http_placement import HttpPlacement, an_api
from tests.support.ids import uid

A = uid(1, "a")


class PublishedRecords:
    def __init__(self) -> None:
        self.records: list[ActRecord] = []
        self.is_away = False
        self.requests = RecordedRequests(self.publish, Clock(), AccessPolicy(), "token file")

    async def publish(self, message: Message) -> None:
        assert isinstance(message, ActsRecorded)
        if self.is_away:
            raise Unavailable("no broker")
        self.records += message.records

    async def all(self) -> list[ActRecord]:
        await self.requests.flush()
        return self.records


@pytest.fixture
def published() -> PublishedRecords:
    return PublishedRecords()


@pytest.fixture
async def api(published: PublishedRecords) -> AsyncIterator[HttpPlacement]:
    async with an_api("sqlite+aiosqlite://", records=published.requests) as near:
        await near.provider(A)
        await published.all()
        published.records.clear()
        yield near


async def test_a_refused_change_is_recorded_with_the_reason(
    api: HttpPlacement, published: PublishedRecords
) -> None:
    await api("PUT", f"/resource_providers/{A}/traits", {"traits": [], "resource_provider_generation": 7})
    (record,) = await published.all()
    assert record.outcome == "refused"
    assert "generation already changed" in record.detail


async def test_requests_without_a_token_cannot_fill_the_audit_trail(
    api: HttpPlacement, published: PublishedRecords
) -> None:
    for _ in range(20):
        await api("GET", "/resource_providers", token="")
    records = await published.all()
    assert {(record.act, record.outcome) for record in records} == {("sign in", "denied")}
    assert len(records) < 10


async def test_records_wait_for_the_broker(api: HttpPlacement, published: PublishedRecords) -> None:
    published.is_away = True
    await api("DELETE", f"/resource_providers/{A}")
    assert not await published.all()
    published.is_away = False
    assert [record.act for record in await published.all()] == ["placement:resource_providers:delete"]
