"""A scheduler with an outdated replica or without a host: wait, retry or end."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from bus.messages import BuildPlaced, BuildUnplaceable, SchedulerAlive
from bus.queries import Candidate
from bus.requests import Flavor
from bus.vocabulary import Resources
from control_room.kit import Changes, SharedData, shared_data
from control_room.kit.shared_data import background_tasks
from scheduler_worker.core.events import Chosen, ComeAgain, Effect, Need, Passed, Started
from scheduler_worker.core.host_hashes import mixed, slice_of
from scheduler_worker.core.order import BUILD, ROUNDS, Order, attempts_of
from scheduler_worker.core.request import RequestOptions, alternatives_of
from scheduler_worker.core.shortage import Shortage
from scheduler_worker.core.step import PATIENCE, step
from scheduler_worker.hosts import HostBook
from scheduler_worker.pending_choices import PendingChoice, PendingChoices
from scheduler_worker.roster import GONE_SECONDS, Roster
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.ranking_builders import Hall, a_hall, free, hosts_of, take
from tests.support.scheduler_builders import SMALL, FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

BIG = Flavor(name="big", vcpus=6)
FULL = {"VCPU": 0, "MEMORY_MB": 8192, "DISK_GB": 80}
TIGHT = {"VCPU": 1, "MEMORY_MB": 8192, "DISK_GB": 80}


class World:
    def __init__(self, sent: list[Candidate], unpublished: list[Candidate]):
        self.placement = FakePlacement(*sent, unpublished=unpublished)
        self.source = self.placement.source
        self.scheduler = scheduler_of(self.placement, source=self.source, clock=TurnedClock().clock)

    async def hosts(self, *requests: dict[str, Any]) -> list[str]:
        asked = [a_request(number, **fields) for number, fields in enumerate(requests, 1)]
        found: list[str] = []
        for verdict in await self.scheduler.place_many(asked):
            assert isinstance(verdict, list | tuple), verdict
            for one in verdict:
                if isinstance(one, BuildPlaced):
                    found.append(f"{one.chosen.host} {one.spec.flavor.name}")
                elif isinstance(one, BuildUnplaceable):
                    found += ["none"] * len(one.instances)
        return found


HOST1, FULL1, TIGHT1 = a_candidate(1), a_candidate(1, free=FULL), a_candidate(1, free=TIGHT)
HOST2 = a_candidate(2)
BEHIND: dict[str, tuple[list[Candidate], list[Candidate], dict[str, Any], list[str]]] = {
    "the first host there is": ([], [HOST1], {}, ["host1 small"]),
    "room elsewhere": ([FULL1], [HOST2], {}, ["host2 small"]),
    "the host it names": ([HOST1], [HOST2], {"forced_host": "host2"}, ["host2 small"]),
    "its cell": ([HOST1], [a_candidate(2, cell="cell2")], {"cell": "cell2"}, ["host2 small"]),
    "its zone": ([HOST1], [a_candidate(2, zone="z")], {"zone": "z"}, ["host2 small"]),
    "no ignored host": ([FULL1], [HOST2, a_candidate(3)], {"ignore_hosts": ("host3",)}, ["host2 small"]),
    "the flavor it wants": ([TIGHT1], [HOST2], {"flavor": BIG, "or_else": (SMALL,)}, ["host2 big"]),
    "all of its instances": ([TIGHT1], [HOST2], {"instances": 3, "at_least": 1}, ["host2 small"] * 3),
    "there is none indeed": ([HOST1], [], {"forced_host": "host2"}, ["none"]),
}


@pytest.mark.parametrize(("sent", "unpublished", "request_fields", "expected"), BEHIND.values(), ids=BEHIND)
async def test_unseen_changes_are_read_before_a_refusal(
    sent: list[Candidate], unpublished: list[Candidate], request_fields: dict[str, Any], expected: list[str]
) -> None:
    world = World(sent, unpublished)
    assert sorted(await world.hosts(request_fields)) == expected
    assert world.source.levelled == 1
    assert not world.source.packing.taken


NOTHING = Shortage(considered=3)


def an_order(**request: object) -> Order:
    asked = a_request(1, **request)  # type: ignore[arg-type]
    alternatives = alternatives_of(asked, RequestOptions(), lambda _: ())
    return Order(asked, attempts_of(asked, alternatives), asked.instances, purpose=BUILD)


def last_of(order: Order, short: Shortage, looks: int, patience: float) -> Effect:
    order, effects = step(order, Started(), patience)
    for _ in range(looks):
        assert effects[0] is Need.HOSTS
        order, effects = step(order, Chosen(short=short), patience)
        assert effects[0] is Need.FALLBACKS
        order, effects = step(order, Passed(), patience)
    return effects[0]


@pytest.mark.parametrize(
    ("short", "looks", "then"),
    [
        (NOTHING, 1, Need.REMEDIES),
        (replace(NOTHING, may_pass=True), 1, ComeAgain),
        (replace(NOTHING, is_reserved=True), 1, Need.HOSTS),
        (replace(NOTHING, is_reserved=True), ROUNDS, ComeAgain),
    ],
)
def test_only_hopeless_requests_end(short: Shortage, looks: int, then: Need | type[Effect]) -> None:
    last = last_of(an_order(), short, looks, PATIENCE)
    assert then in (last, type(last))


ROOT = uid(1, "c")
ONE: Resources = {"VCPU": 1, "MEMORY_MB": 512}


@pytest.fixture
def source() -> RecordingSource:
    return RecordingSource()


@pytest.fixture
def time() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def pending(source: RecordingSource, time: TurnedClock) -> PendingChoices:
    return PendingChoices(source, HostBook(0.0), time.clock, timeout=10)


def chosen(pending: PendingChoices, resources: Resources = ONE) -> PendingChoice:
    return pending.enter(structs.replace(a_candidate(1), root=ROOT, allocations={ROOT: resources}))


def test_a_failed_claim_releases_its_reservation_once(
    source: RecordingSource, pending: PendingChoices
) -> None:
    first, second = chosen(pending), chosen(pending)
    pending.drop(first)
    pending.drop(first)
    assert source.taken(ROOT) == ONE
    assert pending.unsettled == [second]


@pytest.mark.parametrize(("seen", "left"), [(6, ONE), (7, {}), (8, {})])
def test_a_claim_is_counted_until_the_memory_has_it(
    source: RecordingSource, pending: PendingChoices, seen: int, left: dict[str, int]
) -> None:
    pending.confirm(chosen(pending), 7)
    assert pending.unsettled == []
    source.memory.index.seen = seen
    pending.expire()
    assert source.taken(ROOT) == left


def test_a_visible_claim_is_not_counted_twice(source: RecordingSource, pending: PendingChoices) -> None:
    entry = chosen(pending)
    source.memory.index.seen = 9
    pending.expire()
    assert source.taken(ROOT) == ONE
    pending.confirm(entry, 7)
    assert source.packing.taken == {}


@pytest.mark.parametrize("confirmed", [False, True])
def test_reservations_expire(
    source: RecordingSource, pending: PendingChoices, time: TurnedClock, confirmed: bool
) -> None:
    entry = chosen(pending)
    if confirmed:
        pending.confirm(entry, 7)
    time.now += 9
    pending.expire()
    assert source.taken(ROOT) == ONE
    time.now += 1
    pending.expire()
    assert source.packing.taken == {}
    source.memory.index.seen = 7
    pending.expire()
    assert source.packing.taken == {}


def test_numbers_that_start_over_do_not_hide_choices(
    source: RecordingSource, pending: PendingChoices
) -> None:
    source.memory.index.seen = 1000
    pending.expire()
    source.memory.index.seen = 1
    pending.expire()
    pending.confirm(chosen(pending), 2)
    assert source.taken(ROOT) == ONE


ROOTS = [uid(number, "c") for number in range(4000)]
HASHES = np.array([mixed(root) for root in ROOTS], np.uint64)


def slices(*names: str) -> dict[str, set[int]]:
    everybody = np.ones(len(ROOTS), np.bool_)
    found = {name: slice_of(HASHES, names, name) for name in names}
    return {
        name: set(np.flatnonzero(everybody if mine is None else mine).tolist())
        for name, mine in found.items()
    }


@pytest.mark.parametrize("several", [1, 2, 3, 4, 9])
def test_every_host_belongs_to_one_scheduler_and_shares_are_equal(several: int) -> None:
    shares = slices(*(f"s{number}" for number in range(several)))
    assert sum(map(len, shares.values())) == len(ROOTS)
    assert set.union(*shares.values()) == set(range(len(ROOTS)))
    fair = len(ROOTS) / several
    assert all(0.8 * fair < len(share) < 1.2 * fair for share in shares.values())


def test_only_the_hosts_of_a_new_or_leaving_scheduler_move() -> None:
    three, four = slices("a", "b", "c"), slices("a", "b", "c", "d")
    for name in "abc":
        assert four[name] < three[name]
    assert four["d"] == set.union(*(three[name] - four[name] for name in "abc"))


def test_names_that_hash_alike_still_share_nothing() -> None:
    same = np.array([5, 5, 5], np.uint64)
    ours, theirs = slice_of(same, ("a", "b"), "a"), slice_of(same, ("b", "a"), "b")
    assert ours is not None and theirs is not None
    assert (ours ^ theirs).all()


async def test_a_scheduler_silent_for_some_seconds_has_no_slice() -> None:
    turned = TurnedClock()
    roster = Roster(turned.clock, "b")
    await roster.handle(await roster.message())
    assert list(roster.live) == ["b"]
    await roster.handle(SchedulerAlive(scheduler="c"))
    turned.now += GONE_SECONDS - 0.1
    await roster.handle(SchedulerAlive(scheduler="a"))
    assert list(roster.live) == ["a", "b", "c"]
    turned.now += 0.2
    assert list(roster.live) == ["a", "b"]
    turned.now += GONE_SECONDS
    assert list(roster.live) == ["b"]


def a_shared_hall(own: str, *schedulers: str) -> tuple[Hall, set[str]]:
    hall = a_hall(*(free(number, 1024 * number, vcpus=1) for number in range(1, 31)))
    hall.hosts.update()
    hall.hosts.share(schedulers, own)
    mine = hall.hosts.ours
    return hall, {host.host for host in hall.source.hosts() if mine is None or mine[host.position]}


def freest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: -int(name.removeprefix("host")))


def test_hosts_of_this_scheduler_are_ranked_first() -> None:
    hall, mine = a_shared_hall("b", "a", "b", "c")
    ranking = hall.rank()
    picks = [take(ranking) for _ in range(30)]
    order = [hosts_of(pick)[0] for pick in picks]
    assert order == [*freest_first(mine), *freest_first(set(order) - mine)]
    assert [pick.crossed for pick in picks] == [name not in mine for name in order]
    assert 0 < len(mine) < 30


def a_clock(now: list[float]) -> Any:
    return SimpleNamespace(monotonic=lambda: now[0])


class Source:
    def __init__(self) -> None:
        self.reads = 0
        self.ended = 0
        self.go = asyncio.Event()

    async def read(self, key: str) -> int:
        self.reads += 1
        number = self.reads
        try:
            await self.go.wait()
        finally:
            self.ended += 1
        if key == "broken":
            raise ValueError(key)
        return number


async def test_readers_share_a_read_unless_it_has_missed_a_change() -> None:
    source, changes = Source(), Changes()
    async with background_tasks(a_clock([0.0])) as tasks, asyncio.TaskGroup() as group:
        data = SharedData(tasks, source.read, changes=changes, seconds=1.0)
        before = [group.create_task(data.get("a")) for _ in range(2)]
        await until(lambda: source.reads == 1)
        changes.notify()
        after = group.create_task(data.get("a"))
        await asyncio.sleep(0)
        source.go.set()
        assert [await task for task in before] == [1, 1]
        assert await after == 2
        assert await data.get("a") == 2
        data.forget()
        assert await data.get("a") == 3


async def test_a_read_ends_after_its_last_reader_and_a_background_read_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_data, "GRACE", 0.01)
    source = Source()
    async with background_tasks(a_clock([0.0])) as tasks:
        data = SharedData(tasks, source.read, seconds=1.0)
        for refresh in (False, True):
            if refresh:
                assert data.refresh("a") is not None
                assert data.refresh("a") is None
            reader = asyncio.create_task(data.get("a"))
            await until(lambda: source.reads == 1 + refresh)  # noqa: B023
            reader.cancel()
            await asyncio.wait([reader])
            await asyncio.sleep(0.05)
            assert source.ended == 1
        source.go.set()
        assert await data.get("a") == 2


async def test_all_readers_get_the_error_of_a_read_and_the_next_reader_reads_again() -> None:
    source = Source()
    source.go.set()
    async with background_tasks(a_clock([0.0])) as tasks:
        data = SharedData(tasks, source.read, seconds=1.0)
        for reads in (1, 2):
            found = await asyncio.gather(*(data.get("broken") for _ in range(2)), return_exceptions=True)
            assert [str(error) for error in found] == ["broken", "broken"]
            assert source.reads == reads
        assert data.known("broken") is None
