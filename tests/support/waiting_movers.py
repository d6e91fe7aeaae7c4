"""A conductor for tests of waiting moves, with scripted answers about its builds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, ReleaseRequested, holder_consumer
from bus.context import current
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.messages import BuildPlaced
from bus.moves import MovePlaced, MoveRefused, MoveRequested
from bus.queries import BuildsFound, BuildStands, FindBuilds, WaitingRequest
from bus.reports import Inventory
from bus.requests import Flavor
from bus.routing import Address
from bus.worker import Worker, answers, on
from tests.support.ids import uid
from tests.support.move_builders import a_move
from tests.support.scheduler_builders import a_request
from tests.support.waiting_world import CELL, WaitingWorld

TWO = Flavor(name="two", vcpus=2)


@dataclass
class WaitingMovers:
    world: WaitingWorld
    stands: dict[str, BuildStands] = field(default_factory=dict)
    placed: list[MovePlaced] = field(default_factory=list)
    refused: list[MoveRefused] = field(default_factory=list)
    stories: dict[str, str] = field(default_factory=dict)  # #122 |
    deaf: bool = False

    async def live(self) -> None:
        worker = Worker(
            f"conductor.{CELL}",
            consumes=[
                on(topics.MOVE_PLACED.at(cell=CELL), self._hear_placed),
                on(Address(topics.MOVE_REFUSED, "move.refused.#"), self._hear_refused, private=True),
            ],
            answers=[answers(topics.FIND_BUILDS, self._find, cell=CELL)],
        )
        async with Bus(LocalTransport(self.world.broker), self.world.clock) as bus:
            await bus.serve(worker, asyncio.Event())

    # What a test does

    async def host(self, number: int, vcpus: int) -> None:
        await self.world.report(number, {"VCPU": Inventory(total=max(vcpus, 1), reserved=0 if vcpus else 1)})

    async def heard(self, seconds: float, of: int) -> None:
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
        """Its cell has taken it down."""
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

    async def _hear_placed(self, said: MovePlaced) -> None:
        self.placed.append(said)
        self._note(said.move)

    async def _hear_refused(self, said: MoveRefused) -> None:
        self.refused.append(said)
        self._note(said.move)

    def _note(self, move: str) -> None:
        envelope = current.get()
        assert envelope is not None
        self.stories[move] = envelope.correlation

    async def _find(self, question: FindBuilds) -> BuildsFound:
        if self.deaf:
            await asyncio.sleep(3600.0)
        return BuildsFound(
            builds=tuple(self.stands[build] for build in question.builds if build in self.stands)
        )


@asynccontextmanager
async def waiting_movers(world: WaitingWorld, full: int = 0) -> AsyncIterator[WaitingMovers]:
    """Host 1 has a build, and host 2 room for so many processors."""
    movers = WaitingMovers(world)
    world.lives["conductor"] = world.group.create_task(movers.live())
    await asyncio.sleep(0.05)
    await movers.host(1, 8)
    await movers.host(2, full)
    await asyncio.sleep(0.2)
    yield movers


BUILD = uid(1000, "b")  # of the first request
