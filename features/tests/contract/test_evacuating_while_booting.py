"""Evacuations of a host while boots take free capacity: no instance stays behind if the headroom was kept."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import pytest
from msgspec.structs import replace

from berth.kit import Settings
from berth.kit.testing import open_placement, placement_breaches
from bus.claims import Choice, Claimed
from bus.clock import Clock
from bus.host_health import FORCED_DOWN
from bus.messages import BuildRequested, HostReported, Selection
from bus.names import MakeName, NameEditRequested
from bus.reports import HostState, Inventory
from bus.requests import BuildSpec, Flavor
from features.headroom.controller import HeadroomController
from features.headroom.messages import FindHeadroom
from features.headroom.placement import ADJUST_SECONDS
from features.headroom.tests.support.evacuations import HEADROOM
from features.moves.core.start import MoveStart, asked_by
from features.moves.messages import MoveRefused, MoveRequested
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.messages import MakeReservation, ReservationEditRequested
from features.reservations.operations import ReservationOperations
from placement_worker.extension import Memory
from placement_worker.testing import IndexedSource, Placement
from scheduler_worker.extension import ComeAgain, Purpose, events
from scheduler_worker.testing import BUILD, Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_release, a_report, an_order, on_hosts
from tests.support.schedulers import narrowing_of, scheduler_of
from tests.support.virtual_time import run

SIZES = 1, 2, 3, 4  # processors of the flavors
KEPT = replace(HEADROOM, levels=("host",), returns=False)
BOOTS = 10

Asked = tuple[BuildRequested, Purpose]
T = TypeVar("T")


@dataclass
class LostHost:
    """A random cloud in virtual time whose headroom is kept, with one or two schedulers. It loses a host, and
    requests to evacuate its instances arrive at the same moment as boots, in portions of random sizes.
    """

    seed: int
    left: list[str] = field(default_factory=list)  # instances that were not evacuated, with the reason

    async def run(self) -> list[str]:
        chance, loop = Random(f"lost host {self.seed}"), asyncio.get_running_loop()
        self._chance = chance
        self._slow = chance.choice((0.0005, 0.002, 0.01))  # longest seconds of a statement
        self._lag = chance.choice((0.01, 0.05, 0.5))  # seconds between two reads of changes by a scheduler
        self._portions = chance.choice(((1,), (1, 2, 4, 20), (20,)))  # requests that are placed together
        self._clock = Clock(lambda: 1000.0 + loop.time(), Random(self.seed), loop.time)
        url, pause = "sqlite+aiosqlite://", self._pause
        async with a_placement(url, self._clock, inline=True, pause=pause) as self._placement:
            await self._make_hosts()
            await self._fill()
            await self._lose_a_host()
            assert await placement_breaches(self._placement.database) == []
        return self.left

    async def _pause(self) -> None:
        if self._chance.random() < 0.5:
            await asyncio.sleep(self._chance.random() * self._slow)

    async def _make_hosts(self) -> None:
        placement, trait = self._placement, MakeName(name=FORCED_DOWN)
        await placement.classes_and_traits.edit(NameEditRequested(kind="trait", edit=trait))
        sizes = {host: self._chance.choice((16, 24)) for host in range(1, self._chance.randint(6, 12) + 1)}
        self._hosts = {host: {"VCPU": Inventory(total=size)} for host, size in sizes.items()}
        await placement.reports.report_many(
            [a_report(host, inventories=has) for host, has in self._hosts.items()]
        )
        edit = MakeReservation(reservation=KEPT)
        await placement.of(ReservationOperations).edit(ReservationEditRequested(edit=edit))

    async def _fill(self) -> None:
        """Place instances on random hosts, as many as headroom can cover."""
        self._instances: dict[int, tuple[int, int]] = {}  # consumer → host and size
        numbers = range(100, 100 + self._chance.randint(15, 40))
        for some in _in_portions(numbers, lambda: self._chance.choice((1, 4))):
            places = {id_: (self._chance.choice([*self._hosts]), self._chance.choice(SIZES)) for id_ in some}
            orders = [an_order(a_claim(id_, on_hosts(at, VCPU=size))) for id_, (at, size) in places.items()]
            answers = await self._placement.claims.claim_many(orders)
            claimed = [isinstance(answer.results[0], Claimed) for answer in answers]
            placed = {id_: places[id_] for id_, is_there in zip(places, claimed, strict=True) if is_there}
            if await self._is_kept():
                self._instances |= placed
            else:
                await self._placement.claims.release_many([a_release(id_, "any") for id_ in placed])
        assert await self._is_kept()

    async def _is_kept(self) -> bool:
        controller = self._placement.of(HeadroomController)
        await controller.adjust()
        [found] = (await controller.find(FindHeadroom())).headrooms
        return found.kept

    async def _lose_a_host(self) -> None:
        [(lost, _)] = Counter(host for host, _ in self._instances.values()).most_common(1)
        schedulers = [await self._scheduler() for _ in range(self._chance.choice((1, 1, 2)))]
        down = a_report(lost, sequence=2, inventories=self._hosts[lost], traits=(FORCED_DOWN,))
        await self._placement.reports.report_many([down])
        moves = [_move(id_, *place) for id_, place in self._instances.items() if place[0] == lost]
        boots = [_boot(number, self._chance.choice(SIZES)) for number in range(BOOTS)]
        async with asyncio.TaskGroup() as group:
            adjust = self._placement.of(HeadroomController).adjust
            timers = [group.create_task(self._repeat(adjust, ADJUST_SECONDS))]
            timers += [group.create_task(self._repeat(memory.fresh, self._lag)) for _, memory in schedulers]
            placing = [
                group.create_task(self._place(self._chance.choice(schedulers)[0], some))
                for asked in (moves, boots)
                for some in _in_portions(asked, lambda: self._chance.choice(self._portions))
            ]
            await asyncio.wait(placing)
            for timer in timers:
                timer.cancel()

    async def _scheduler(self) -> tuple[Scheduler, Memory]:
        """Return a scheduler with a replica of the index that learns of changes later than placement."""
        replica: Placement = open_placement(Settings(), self._placement.database, self._clock)
        await replica.book.read_again(replica.database)
        await replica.memory.reload()
        source = IndexedSource(replica.memory)
        scheduler = scheduler_of(self._placement, source=source, clock=self._clock)
        for host in self._hosts:
            states = (HostState(root=uid(host, "a"), host=f"host-{host}"),)
            await scheduler.handle(HostReported(cell="c1", agent=f"agent-{host}", sequence=1, hosts=states))
        narrowing_of(scheduler, DrawnReservations).learn([KEPT])
        return scheduler, replica.memory

    async def _repeat(self, call: Callable[[], Awaitable[None]], seconds: float) -> None:
        await asyncio.sleep(self._chance.random() * seconds)
        while True:
            await call()
            await asyncio.sleep(seconds)

    async def _place(self, scheduler: Scheduler, asked: Sequence[Asked]) -> None:
        await asyncio.sleep(self._chance.random() * 0.02)
        while asked:
            again, pause = list[Asked](), 0.0
            ends = await scheduler.place(scheduler.begin_for(asked))
            for each, end in zip(asked, ends, strict=True):
                if isinstance(end, ComeAgain):
                    scheduler.retries.begin(each[0].request)
                    again, pause = [*again, each], self._clock.chance.uniform(end.least, end.most)
                    continue
                assert isinstance(end, events.Publish), end
                refused = [message for message in end.messages if isinstance(message, MoveRefused)]
                self.left += [f"{message.build}: {message.reason}" for message in refused]
            asked = again
            await asyncio.sleep(pause)


def _move(consumer: int, host: int, size: int) -> Asked:
    root = uid(host, "a")
    source = Selection(
        root=root, host=f"host-{host}", agent=f"agent-{host}", choice=Choice({root: {"VCPU": size}})
    )
    asked = MoveRequested(move=uid(consumer, "e"), build=uid(consumer), kind="evacuate")
    spec = BuildSpec(flavor=_flavor(size), project="p1", user="u1")
    start = MoveStart(asked=asked, cell="c1", attempt=1, generation=1, source=source, spec=spec)
    return asked_by(start)


def _boot(number: int, size: int) -> Asked:
    build = uid(number, "b")
    return BuildRequested(request=build, instances=(build,), flavor=_flavor(size), project="p2"), BUILD


def _flavor(vcpus: int) -> Flavor:
    return Flavor(name=f"f{vcpus}", vcpus=vcpus)


def _in_portions(everything: Iterable[T], several: Callable[[], int]) -> list[list[T]]:
    left, found = list(everything), list[list[T]]()
    while left:
        most = several()
        found.append(left[:most])
        left = left[most:]
    return found


@pytest.mark.parametrize(
    "seeds",
    [range(8), *(pytest.param(range(at, at + 24), marks=pytest.mark.soak) for at in range(8, 200, 24))],
)
def test_no_instance_stays_on_a_lost_host_whose_headroom_was_kept(seeds: range) -> None:
    assert {seed: left for seed in seeds if (left := run(LostHost(seed).run()))} == {}
