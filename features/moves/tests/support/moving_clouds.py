"""A small cloud whose instance moves, with a scheduler and without a database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bus.claims import holder_consumer
from bus.decisions import AlsoAsked
from bus.errors import Poison, Retry
from bus.parts import DecisionParts
from bus.queries import Candidate
from bus.requests import Flavor
from bus.topics import Query
from bus.vocabulary import Id
from features.moves.messages import HandoverProgress, MoveConflict, MovePlaced, MoveRefused, MoveRequested
from features.moves.placing import MovePlacing
from features.moves.tests.support.move_builders import BUILD, Cells, MovingPlacement, a_build_that_stands
from features.moves.tests.support.moves_of_schedulers import moves_of
from scheduler_worker.extension import ChoicePolicy, decisions
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.scheduler_builders import a_candidate
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock

KEEP = holder_consumer(BUILD, 1)
BIG = Flavor(name="big", vcpus=4, memory_mb=2048, disk_gb=10)


def root(number: int) -> str:
    return uid(number, "c")


@dataclass
class MovingCloud:
    """Some hosts, a cell with a build on the first of them, and a scheduler."""

    placement: MovingPlacement
    cells: Cells = field(default_factory=Cells)
    time: TurnedClock = field(default_factory=TurnedClock)
    policy: ChoicePolicy | None = None
    refusals: list[decisions.StoredRefusal] = field(default_factory=list)
    scheduler: Scheduler = field(init=False)
    moves: MovePlacing = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler, self.moves = self.another()

    def another(self) -> tuple[Scheduler, MovePlacing]:
        """A scheduler that remembers nothing."""
        placement = self.placement
        scheduler = scheduler_of(placement, policy=self.policy, clock=self.time.clock, undeliverable_for=60.0)
        moves = moves_of(scheduler, self.cells.find, keep=self.keep, find_moves=self.cells.find_moves)
        return scheduler, moves

    async def keep(self, ended: Sequence[decisions.StoredRefusal]) -> Mapping[Id, DecisionParts]:
        before = {stored.id: stored.parts for stored in reversed(self.refusals)}
        self.refusals += ended
        return {each.id: before[each.id] for each in ended if each.id in before}

    async def come_of(self, *moves: MoveRequested) -> list[MovePlaced | MoveRefused | MoveConflict]:
        reply: list[MovePlaced | MoveRefused | MoveConflict] = []
        for verdict in await self.moves.place_many(moves):
            assert not isinstance(verdict, Retry | Poison), verdict
            reply += [one for one in verdict if not isinstance(one, HandoverProgress)]
        return reply

    async def placed(self, move: MoveRequested) -> MovePlaced:
        (message,) = await self.come_of(move)
        assert isinstance(message, MovePlaced), message
        return message

    async def refused(self, move: MoveRequested) -> MoveRefused:
        (message,) = await self.come_of(move)
        assert isinstance(message, MoveRefused), message
        return message

    async def conflict(self, move: MoveRequested) -> MoveConflict:
        (message,) = await self.come_of(move)
        assert isinstance(message, MoveConflict), message
        return message

    async def retry(self, move: MoveRequested) -> Retry:
        (verdict,) = await self.moves.place_many([move])
        assert isinstance(verdict, Retry), verdict
        return verdict


def a_cloud(
    *candidates: Candidate,
    hosts: int = 4,
    answers: dict[Query[Any, Any], Any] | None = None,
    **stands: object,
) -> MovingCloud:
    """Return a cloud; placement answers further queries with `answers`."""
    placement = MovingPlacement(*(candidates or [a_candidate(number) for number in range(1, hosts + 1)]))
    placement.answers |= answers or {}
    cloud = MovingCloud(placement)
    placement.hold(BUILD, 1)
    cloud.cells.know(a_build_that_stands(1, **stands))  # type: ignore[arg-type]
    return cloud


def shelved(cloud: MovingCloud, asked: AlsoAsked | None = None) -> None:
    del cloud.placement.held[BUILD]
    stands = a_build_that_stands(1, status="shelved", generation=None, asked=asked)
    cloud.cells.know(replace(stands, chosen=None))
