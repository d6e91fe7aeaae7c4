"""A cell with instances that move, for tests of waiting moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, ReleaseRequested, holder_consumer
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.messages import BuildPlaced
from bus.queries import BuildsFound, BuildStands, FindBuilds, WaitingRequest
from bus.reports import Inventory
from bus.requests import Flavor
from bus.topics import Address
from bus.worker import Worker, answers, on
from features.moves.messages import (
    MOVE_CONFLICT,
    MOVE_PLACED,
    MOVE_REFUSED,
    MoveConflict,
    MovePlaced,
    MoveRefused,
    MoveRequested,
)
from features.moves.tests.support.move_builders import a_move
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request
from tests.support.waiting_world import CELL, WaitingWorld

TWO = Flavor(name="two", vcpus=2)


@dataclass
class WaitingMovers:
    world: WaitingWorld
    stands: dict[str, BuildStands] = field(default_factory=dict)
    placed: list[MovePlaced] = field(default_factory=list)
    refused: list[MoveRefused] = field(default_factory=list)
    conflicts: list[MoveConflict] = field(default_factory=list)
    deaf: bool = False

    async def live(self) -> None:
        worker = Worker(
            f"conductor.{CELL}",
            consumes=[
                on(MOVE_PLACED.at(cell=CELL), self._on_placed),
                on(Address(MOVE_REFUSED, "move.refused.#"), self._on_refused, private=True),
                on(Address(MOVE_CONFLICT, "move.conflict.#"), self._on_conflict, private=True),
            ],
            answers=[answers(topics.FIND_BUILDS, self._find, cell=CELL)],
        )
        async with Bus(LocalTransport(self.world.broker), self.world.clock) as bus:
            await bus.serve(worker, asyncio.Event())

    # Operations of tests

    async def host(self, number: int, vcpus: int) -> None:
        await self.world.report(number, {"VCPU": Inventory(total=max(vcpus, 1), reserved=0 if vcpus else 1)})

    async def events(self, seconds: float, of: int) -> None:
        for _ in range(int(seconds / 2)):
            await self.world.host_says(of)
            await asyncio.sleep(2.0)

    async def boot(self, number: int, on: int, **fields: Any) -> str:
        several = len(self.world.placed)
        given = {"flavor": TWO, "forced_host": f"host-{on}", **fields}
        await self.world.bus.publish(a_request(number, **given))
        await self.world.until(several + 1, self.world.placed)
        return self.know(self.world.placed.pop()[1])

    def know(self, placed: BuildPlaced) -> str:
        self.stands[placed.build] = BuildStands(
            build=placed.build, status="active", placed=placed, host=placed.chosen.host, attempt=1,
            generation=placed.generation, chosen=placed.chosen, spec=placed.spec,
        )  # fmt: skip
        return placed.build

    async def ask(self, build: str, number: int = 1, kind: str = "migrate", **fields: Any) -> MoveRequested:
        move = a_move(number, kind, build=build, **{"wait": "30m", **fields})
        await self.world.bus.publish(move)
        return move

    def change(self, build: str, **so: Any) -> None:
        self.stands[build] = replace(self.stands[build], **so)

    async def is_deleted(self, build: str) -> None:
        """Release the build's claim and change its status, as its cell does after a deletion."""
        release = ReleaseRequested(consumer=build, generation=self.stands[build].generation, retire="deleted")
        await self.world.bus.asker(topics.RELEASE)(release)
        self.change(build, status="deleted", generation=None, chosen=None)

    async def was_moved(self, build: str, to: int) -> None:
        stands = self.stands[build]
        assert stands.chosen is not None
        await self.world.host_says(to, enabled=False)
        await self.host(to, 8)
        choice = Choice({uid(to, "a"): {"VCPU": 2}})
        claim = ConsumerClaim(
            consumer=build, generation=stands.generation, choices=(choice,), project="p", user="u",
            keep=holder_consumer(build, stands.attempt),
        )  # fmt: skip
        answer = await self.world.bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))
        [result] = answer.results
        assert isinstance(result, Claimed)
        chosen = replace(stands.chosen, root=uid(to, "a"), host=f"host-{to}", choice=choice)
        self.change(build, attempt=stands.attempt + 1, generation=result.generation, chosen=chosen)

    def has_moved(self, placed: MovePlaced) -> None:
        assert placed.chosen is not None
        self.change(
            placed.build, move=placed.move, attempt=placed.attempt + 1, generation=placed.generation,
            chosen=placed.chosen, host=placed.chosen.host, spec=placed.spec,
        )  # fmt: skip

    async def waiting(self) -> list[WaitingRequest]:
        return list((await self.world.waiting()).waiting)

    async def _on_placed(self, placed: MovePlaced) -> None:
        self.placed.append(placed)

    async def _on_refused(self, refused: MoveRefused) -> None:
        self.refused.append(refused)

    async def _on_conflict(self, conflict: MoveConflict) -> None:
        self.conflicts.append(conflict)

    async def _find(self, question: FindBuilds) -> BuildsFound:
        if self.deaf:
            await asyncio.sleep(3600.0)
        return BuildsFound(
            builds=tuple(self.stands[build] for build in question.builds if build in self.stands)
        )


@asynccontextmanager
async def waiting_movers(world: WaitingWorld, full: int = 0) -> AsyncIterator[WaitingMovers]:
    """Yield a world in which host 1 has a build, and host 2 has `full` processors."""
    movers = WaitingMovers(world)
    world.lives["conductor"] = world.group.create_task(movers.live())
    await asyncio.sleep(0.05)
    await movers.host(1, 8)
    await movers.host(2, full)
    await asyncio.sleep(0.2)
    yield movers
