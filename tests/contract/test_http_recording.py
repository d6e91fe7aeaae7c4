"""The audit trail of the Placement API: changes with their states before and after, and denied requests."""

from collections.abc import AsyncIterator
from typing import Any

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
TRAIT = "HW_CPU_X86_AVX2"


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


async def test_a_change_is_recorded_with_the_states_before_and_after(
    api: HttpPlacement, published: PublishedRecords
) -> None:
    body = {"traits": [TRAIT], "resource_provider_generation": 0}
    answer = await api("PUT", f"/resource_providers/{A}/traits", body)
    (record,) = await published.all()
    assert (record.act, record.target, record.outcome) == (
        "placement:resource_providers:traits:update",
        A,
        "done",
    )
    assert (record.before, record.after) == ('{"traits":[]}', f'{{"traits":["{TRAIT}"]}}')
    assert TRAIT in record.asked
    assert (record.operator.name, record.operator.role, record.operator.known_by) == (
        "admin", "admin", "token file",
    )  # fmt: skip
    assert record.request == answer.headers["x-openstack-request-id"]
    assert record.through == "PUT /resource_providers/{uuid}/traits"
    assert record.origin == "127.0.0.1"


async def test_a_refused_change_is_recorded_with_the_reason(
    api: HttpPlacement, published: PublishedRecords
) -> None:
    await api("PUT", f"/resource_providers/{A}/traits", {"traits": [], "resource_provider_generation": 7})
    (record,) = await published.all()
    assert record.outcome == "refused"
    assert "generation already changed" in record.detail


DENIED: dict[str, tuple[str, str, Any]] = {
    "a change": ("PUT", f"/resource_providers/{A}/traits", {"traits": [], "resource_provider_generation": 0}),
    "a read": ("GET", "/resource_providers", None),
}


@pytest.mark.parametrize(("method", "path", "body"), DENIED.values(), ids=DENIED.keys())
async def test_a_denied_request_is_recorded(
    api: HttpPlacement, published: PublishedRecords, method: str, path: str, body: Any
) -> None:
    assert (await api(method, path, body, token="eve")).status_code == 403
    (record,) = await published.all()
    assert (record.operator.name, record.operator.role, record.outcome) == ("eve", "", "denied")


async def test_a_permitted_read_is_not_recorded(api: HttpPlacement, published: PublishedRecords) -> None:
    await api("GET", "/resource_providers")
    assert not await published.all()


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
