"""The REST API after a crash at any point: repeated requests are published, and ends keep their numbers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from berth.features import packages
from berth.kit.rest_ends import REPLY_TO
from berth.rest.callers import RestCaller
from berth.rest.ends import EndLog, Expired
from berth.rest.operations import RestOperations
from berth.rest.store import IdTaken
from berth.settings import Settings
from bus.audit_trail import Operator
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.problems import KnownProblem
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from tests.support.ids import uid
from tests.support.rest_berth import a_boot

OLGA = Operator(name="olga", role="admin", project="web")
BOOT = a_boot(uid(1), 2)


class FakeBus:
    """A bus that loses messages that are published while it is unreachable."""

    clock = Clock()

    def __init__(self) -> None:
        self.is_away = False
        self.published = list[Message]()

    def asker(self, query: object) -> Callable[[Message], Awaitable[Message]]:
        async def ask(question: Message) -> Message:
            raise Unavailable("no scheduler")

        return ask

    async def publish(self, *messages: Message) -> None:
        if self.is_away:
            raise Unavailable("no broker")
        self.published += messages


@pytest.fixture
async def stored(database: Database) -> Database:
    await migrate(database, *packages("rest"))
    return database


async def _no_problems() -> list[KnownProblem]:
    return []


Doors = Callable[[FakeBus], RestOperations]


@pytest.fixture
async def an_api(stored: Database) -> AsyncIterator[Doors]:
    """Yield a function that makes a REST API as after a start, with an empty memory."""
    working: list[asyncio.Task[None]] = []

    def make(bus: FakeBus) -> RestOperations:
        ends = EndLog(stored, bus.clock, 60.0, 60.0, {})
        api = RestOperations(cast(Bus, bus), Settings(), stored, ends, _no_problems)
        working.append(asyncio.create_task(api.accepted.run()))
        return api

    yield make
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)


async def test_a_request_is_published_until_the_broker_has_confirmed_it(an_api: Doors) -> None:
    bus, caller = FakeBus(), RestCaller(OLGA)
    bus.is_away = True
    with pytest.raises(Unavailable):
        await an_api(bus).boot(caller, [BOOT])
    bus.is_away = False
    api = an_api(bus)
    accepted = await api.boot(caller, [BOOT])
    assert await api.boot(caller, [BOOT]) == accepted
    (published,) = bus.published
    assert isinstance(published, BuildRequested)
    assert (published.instances, published.project, published.reply_to) == (BOOT.instances, "web", REPLY_TO)
    with pytest.raises(IdTaken):
        await an_api(bus).boot(caller, [a_boot(uid(2)), a_boot(uid(1))])
    assert (await api.request(caller, uid(1), wait=0.0)).builds[0].status == "requested"
    assert bus.published == [published]


async def test_a_refused_batch_leaves_nothing(an_api: Doors) -> None:
    api, caller = an_api(FakeBus()), RestCaller(OLGA)
    await api.boot(caller, [BOOT])
    with pytest.raises(IdTaken):
        await api.boot(caller, [a_boot(uid(2)), a_boot(uid(1))])
    await api.boot(caller, [a_boot(uid(2), 2)])


async def test_concurrent_requests_share_a_transaction_and_one_of_them_may_be_refused(an_api: Doors) -> None:
    bus, caller = FakeBus(), RestCaller(OLGA)
    api = an_api(bus)
    asked = [[BOOT], [a_boot(uid(1))], [a_boot(uid(2))], [BOOT], [a_boot(uid(3)), a_boot(uid(1))]]
    outcomes = await asyncio.gather(*(api.boot(caller, each) for each in asked), return_exceptions=True)
    refused = [isinstance(outcome, IdTaken) for outcome in outcomes]
    assert refused == [False, True, False, False, True]
    assert {each.request for each in bus.published} == {uid(1), uid(2)}  # type: ignore[attr-defined]
    await api.boot(caller, [a_boot(uid(3), 2)])


async def test_an_end_has_one_number_and_wakes_waiting_clients(an_api: Doors) -> None:
    bus, caller = FakeBus(), RestCaller(OLGA)
    await an_api(bus).boot(caller, [BOOT])
    active = BuildEnded(build=BOOT.instances[0], request=BOOT.request, cell="c1", status="active", host="h1")
    refused = BuildUnplaceable(request=BOOT.request, instances=BOOT.instances[1:], reason="full")
    strange = BuildEnded(build=uid(8), request=uid(9), cell="c1", status="active")
    first, second = an_api(bus), an_api(bus)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(second.ends.follow())
        waiting = group.create_task(second.events(caller, "web", 0, wait=60.0))
        await first.ends.record([active, strange])  # by another process
        assert len((await waiting).events) == 1
        following.cancel()
    await second.ends.record([active, refused, refused])  # the acknowledgement of the first was lost
    found = (await an_api(bus).events(caller, "web", 0, wait=0.0)).events
    assert [event.event for event in found] == ["build.ended", "build.unplaceable"]
    assert found[0].number < found[1].number
    state = await first.request(caller, BOOT.request, wait=60.0)
    assert state.is_ended
    assert sorted(build.status for build in state.builds) == ["active", "refused"]


async def test_old_records_are_deleted(an_api: Doors, stored: Database) -> None:
    bus, caller = FakeBus(), RestCaller(OLGA)
    api = an_api(bus)
    await api.boot(caller, [BOOT])
    await api.ends.record([BuildUnplaceable(request=BOOT.request, instances=BOOT.instances, reason="full")])
    await EndLog(stored, bus.clock, -1.0, -1.0, {}).prune()
    with pytest.raises(Expired, match="up to 1 were deleted"):
        await api.events(caller, "web", 0, wait=0.0)
    await api.boot(caller, [a_boot(uid(3), instances=BOOT.instances)])
