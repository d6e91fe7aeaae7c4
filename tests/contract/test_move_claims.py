"""Claims of moves in a real database: each begins once and is undone once, across crashes."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import (
    MIGRATION,
    Claimed,
    ClaimRequested,
    ConsumerClaim,
    ReleaseAnswered,
    ReleaseRequested,
    holder_consumer,
)
from bus.errors import Poison, Retry
from bus.groups import FindGroups, GroupEditRequested, MakeGroup
from bus.host_marks import FORCED_DOWN
from bus.messages import BuildPlaced, HostReported
from bus.moves import HandoverProgress, MovePlaced, MoveRefused, MoveRequested
from bus.names import MakeName, NameEditRequested
from bus.queries import BuildsFound, BuildStands, FindBuilds
from bus.reports import HostState
from bus.requests import Flavor, Hints
from bus.resources import EditRequested, FindAllocations, SetTraits
from placement_worker import IndexedSource, Placement
from scheduler_worker.move_arrivals import MoveArrivals
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.move_builders import a_move
from tests.support.placement_builders import a_placement, a_report
from tests.support.scheduler_builders import a_request

TWO = Flavor(name="two", vcpus=2)
BIG = Flavor(name="big", vcpus=4)
HOSTS = (1, 2, 3)
GROUP = uid(1, "9")


def root(number: int) -> str:
    return uid(number, "a")


@dataclass
class TellingConductor:
    stands: dict[str, BuildStands] = field(default_factory=dict)

    def booted(self, placed: BuildPlaced) -> BuildPlaced:
        self.stands[placed.build] = BuildStands(
            build=placed.build,
            status="active",
            placed=placed,
            host=placed.chosen.host,
            attempt=1,
            generation=placed.generation,
            chosen=placed.chosen,
            spec=placed.spec,
        )
        return placed

    async def find(self, question: FindBuilds) -> BuildsFound:
        return BuildsFound(
            builds=tuple([self.stands[build] for build in question.builds if build in self.stands])
        )


@dataclass
class MovingScheduler:
    """A scheduler before a process of placement."""

    placement: Placement
    conductor: TellingConductor
    scheduler: Scheduler = field(init=False)
    moves: MoveArrivals = field(init=False)

    def __post_init__(self) -> None:
        placement = self.placement
        source, lookups = IndexedSource(placement.memory), placement.lookups
        self.scheduler = Scheduler(
            source,
            placement.claims.claim_many,
            self.release,
            lookups.providers,
            clock=placement.clock,
            groups=placement.server_groups.find,
            allocations=lookups.allocations,
            unheard_for=0.0,
        )
        looks = MoveLookups(
            source,
            self.scheduler.ending,
            lookups.allocations,
            lookups.providers,
            placement.server_groups.find,
            self.conductor.find,
        )
        self.moves = MoveArrivals(self.scheduler, looks, placement.claims.claim_many, self.release)

    async def release(self, order: ReleaseRequested) -> ReleaseAnswered:
        return (await self.placement.claims.release_many([order]))[0]

    async def hears_hosts(self) -> None:
        for host in HOSTS:
            states = (HostState(root=root(host), host=f"host-{host}"),)
            await self.scheduler.handle(
                HostReported(cell="c1", agent=f"agent-{host}", sequence=1, hosts=states)
            )

    async def boot(self, number: int, on: int, group: str | None = None, flavor: Flavor = TWO) -> str:
        hints = Hints(group=group)
        request = a_request(number, flavor=flavor, forced_host=f"host-{on}", hints=hints, project="p1")
        [verdict] = await self.scheduler.place_many([request])
        assert not isinstance(verdict, Retry | Poison)
        [placed] = verdict
        assert isinstance(placed, BuildPlaced), placed
        return self.conductor.booted(placed).build

    async def come_of(self, *moves: MoveRequested) -> list[MovePlaced | MoveRefused | Retry]:
        said: list[MovePlaced | MoveRefused | Retry] = []
        for verdict in await self.moves.place_many(moves):
            assert not isinstance(verdict, Poison), verdict
            told = [verdict] if isinstance(verdict, Retry) else verdict
            said += [one for one in told if not isinstance(one, HandoverProgress)]
        return said

    async def placed(self, move: MoveRequested) -> MovePlaced:
        (message,) = await self.come_of(move)
        assert isinstance(message, MovePlaced), message
        return message

    async def refused(self, move: MoveRequested) -> MoveRefused:
        (message,) = await self.come_of(move)
        assert isinstance(message, MoveRefused), message
        return message

    async def undone(self, placed: MovePlaced) -> MoveRefused | None:
        return await self.moves.take_back(placed)

    async def held(self, *consumers: str) -> dict[str, set[str]]:
        found = await self.placement.lookups.allocations(FindAllocations(consumers=consumers))
        return {consumer.id: set(consumer.allocations) for consumer in found.consumers}


@pytest.fixture
async def here(placement: Placement) -> MovingScheduler:
    await placement.reports.report_many([a_report(number) for number in HOSTS])
    process = MovingScheduler(placement, TellingConductor())
    await process.hears_hosts()
    return process


async def another(here: MovingScheduler) -> MovingScheduler:
    other = MovingScheduler(here.placement, here.conductor)
    await other.hears_hosts()
    return other


async def apart(here: MovingScheduler) -> None:
    group = MakeGroup(group=GROUP, name="web", policy="anti-affinity", project="p1")
    await here.placement.server_groups.edit(GroupEditRequested(edit=group))


def move_of(build: str, number: int = 1, kind: str = "migrate", **fields: Any) -> MoveRequested:
    return a_move(number, kind, build=build, **fields)


async def test_it_goes_elsewhere_and_its_old_place_is_kept_as_a_migration_s(here: MovingScheduler) -> None:
    build = await here.boot(1, on=1)
    placed = await here.placed(move_of(build))
    assert placed.chosen is not None and placed.generation == 2
    assert placed.chosen.root != root(1)
    assert {selection.root for selection in (placed.chosen, *placed.alternates)} == {root(2), root(3)}
    assert await here.held(build, holder_consumer(build, 1)) == {
        build: {placed.chosen.root},
        holder_consumer(build, 1): {root(1)},
    }
    found = await here.placement.lookups.allocations(FindAllocations(consumers=(holder_consumer(build, 1),)))
    assert found.consumers[0].type == MIGRATION


async def test_who_died_before_it_told_is_told_for_by_the_next(here: MovingScheduler) -> None:
    build = await here.boot(1, on=1)
    claimed = await here.placed(move_of(build))
    again = await (await another(here)).placed(move_of(build))
    assert claimed.chosen is not None and again.chosen is not None
    assert (again.chosen.root, again.generation) == (claimed.chosen.root, claimed.generation)
    assert again.chosen.choice.allocations == claimed.chosen.choice.allocations
    assert {alternate.root for alternate in again.alternates} == {
        alternate.root for alternate in claimed.alternates
    }


async def test_two_schedulers_at_once_begin_it_once(here: MovingScheduler, url: str) -> None:
    builds = [await here.boot(number, on=1) for number in range(1, 4)]
    moves = [move_of(build, index) for index, build in enumerate(builds)]
    async with a_placement(url) as placement:
        there = MovingScheduler(placement, here.conductor)
        await there.hears_hosts()
        one, other = await asyncio.gather(here.come_of(*moves), there.come_of(*reversed(moves)))
    for build, move in zip(builds, moves, strict=True):
        told = {
            m.chosen.root
            for m in (*one, *other)
            if isinstance(m, MovePlaced) and m.move == move.move and m.chosen
        }
        held = await here.held(build, holder_consumer(build, 1))
        assert held == {build: told, holder_consumer(build, 1): {root(1)}}
        assert len(told) == 1
    assert not [m for m in (*one, *other) if isinstance(m, MoveRefused)]
    await here.placement.memory.fresh()  # the other process may have been the last


async def test_of_two_moves_of_one_build_at_once_one_begins(here: MovingScheduler, url: str) -> None:
    build = await here.boot(1, on=1)
    async with a_placement(url) as placement:
        there = MovingScheduler(placement, here.conductor)
        await there.hears_hosts()
        said = await asyncio.gather(here.come_of(move_of(build, 1)), there.come_of(move_of(build, 2)))
    kinds = sorted(type(one[0]).__name__ for one in said)
    assert kinds == ["MovePlaced", "Retry"]
    await here.placement.memory.fresh()  # the other process may have been the last


async def test_whoever_fenced_it_first_has_the_word(here: MovingScheduler) -> None:
    build, other = await here.boot(1, on=1), await here.boot(2, on=1)
    there = await another(here)
    impossible = move_of(build, 1, wanted_host="host-1")
    assert (await here.refused(impossible)).code == "same_host"
    assert (await there.refused(move_of(build, 1))).reason == "wanted_host: it is on host-1 already"
    await there.placed(move_of(other, 2))
    assert isinstance((await here.come_of(move_of(other, 2, wanted_host="host-1")))[0], MovePlaced)
    assert await here.held(build) == {build: {root(1)}}


async def test_what_nobody_hears_of_is_undone_once_whoever_does_so(here: MovingScheduler) -> None:
    build = await here.boot(1, on=1)
    placed = await here.placed(move_of(build))
    there = await another(here)
    said = await asyncio.gather(here.undone(placed), there.undone(placed))
    assert said[0] is not None and said[0] == said[1]
    assert await here.held(build, holder_consumer(build, 1)) == {build: {root(1)}}
    assert (await there.refused(move_of(build))).reason == said[0].reason
    stands = here.conductor.stands[build]
    here.conductor.stands[build] = replace(stands, generation=3)
    assert (await here.placed(move_of(build, 2))).generation == 4


async def test_what_its_cell_goes_on_with_is_not_undone(here: MovingScheduler) -> None:
    build = await here.boot(1, on=1)
    placed = await here.placed(move_of(build, alternates=1))
    claim = ConsumerClaim(
        consumer=build,
        generation=placed.generation,
        choices=(placed.alternates[0].choice,),
        project="p1",
        user="u1",
        keep=holder_consumer(build, 2),
    )
    [answer] = await here.placement.claims.claim_many([ClaimRequested(claims=(claim,))])
    assert isinstance(answer.results[0], Claimed)
    assert await here.undone(placed) is None
    assert (await here.held(holder_consumer(build, 1))) == {holder_consumer(build, 1): {root(1)}}


async def test_a_group_is_kept_while_its_members_move(here: MovingScheduler) -> None:
    await apart(here)
    build, other = await here.boot(1, 1, GROUP), await here.boot(2, 2, GROUP)
    placed = await here.placed(move_of(build))
    assert placed.chosen is not None and placed.chosen.root == root(3)
    [group] = (await here.placement.server_groups.find(FindGroups(ids=(GROUP,)))).groups
    assert group.members == {build: (root(3),), other: (root(2),)}
    assert group.left == {holder_consumer(build, 1): (root(1),)}
    assert (await here.refused(move_of(other, 2))).code == "server_group"


async def test_a_resize_on_its_own_host_is_not_in_its_own_way(here: MovingScheduler) -> None:
    await apart(here)
    build = await here.boot(1, 1, GROUP)
    move = move_of(build, 1, "resize", flavor=BIG, same_host=True, wanted_host="host-1")
    placed = await here.placed(move)
    assert placed.chosen is not None and placed.chosen.root == root(1)
    assert await here.held(build, holder_consumer(build, 1)) == {
        build: {root(1)},
        holder_consumer(build, 1): {root(1)},
    }
    tight = await here.boot(2, 2, flavor=Flavor(name="five", vcpus=5))
    move = move_of(tight, 2, "resize", flavor=BIG, same_host=True, wanted_host="host-2")
    assert (await here.refused(move)).code == "class"


async def test_who_is_unshelved_joins_its_group_again_and_it_is_undone_as_well(here: MovingScheduler) -> None:
    await apart(here)
    build, other = await here.boot(1, 1, GROUP), await here.boot(2, 2, GROUP)
    await here.boot(3, 3, GROUP)
    stands = here.conductor.stands[build]
    assert stands.generation is not None
    await here.release(ReleaseRequested(consumer=build, generation=stands.generation))
    here.conductor.stands[build] = replace(stands, status="shelved", generation=None, chosen=None)
    placed = await here.placed(move_of(build, 1, "unshelve"))
    assert placed.chosen is not None and placed.chosen.root == root(1)
    [group] = (await here.placement.server_groups.find(FindGroups(ids=(GROUP,)))).groups
    assert group.members[build] == (root(1),)
    assert await here.undone(placed) is not None
    assert await here.held(build, other) == {other: {root(2)}}
    again = await here.placed(move_of(build, 2, "unshelve"))
    assert again.chosen is not None and again.chosen.root == root(1)


async def test_only_whose_host_is_forced_down_is_evacuated(here: MovingScheduler) -> None:
    build, other = await here.boot(1, on=1), await here.boot(2, on=1)
    assert (await here.refused(move_of(build, 1, "evacuate"))).code == "not_fenced"
    mark = SetTraits(provider=root(1), traits=(FORCED_DOWN,))
    made = NameEditRequested(kind="trait", edit=MakeName(name=FORCED_DOWN))
    await here.placement.classes_and_traits.edit(made)
    await here.placement.providers.edit(EditRequested(edit=mark))
    assert (await here.refused(move_of(other, 2))).code == "source_down"
    placed = await here.placed(move_of(build, 3, "evacuate"))
    assert placed.chosen is not None and placed.chosen.root != root(1)
    assert await here.held(holder_consumer(build, 1)) == {holder_consumer(build, 1): {root(1)}}
