"""Waiting moves: stored, woken, looked up again, ended; at most one per instance."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, ReleaseRequested, holder_consumer
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalTransport
from bus.messages import BuildCancelRequested, BuildPlaced
from bus.queries import BuildsFound, BuildStands, FindBuilds, WaitingRequest
from bus.reports import Inventory
from bus.requests import Flavor, Hints
from bus.topics import Address
from bus.worker import Worker, answers, on
from features.groups.messages import EDIT_GROUP, DropGroup, GroupEditRequested, MakeGroup
from features.groups.tests.support.group_parts import in_group
from features.moves.messages import MOVE_PLACED, MOVE_REFUSED, MovePlaced, MoveRefused, MoveRequested
from features.moves.tests.support.move_builders import MOVE, a_move
from features.waiting.placing import WaitingMoves
from features.waiting.results import Ended
from features.waiting.suspects import MAX_STRIKES, WHY
from features.waiting.tables import queued
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import CELL, WaitingWorld, waiting_world

TWO = Flavor(name="two", vcpus=2)


@dataclass
class WaitingMovers:
    world: WaitingWorld
    stands: dict[str, BuildStands] = field(default_factory=dict)
    placed: list[MovePlaced] = field(default_factory=list)
    refused: list[MoveRefused] = field(default_factory=list)
    deaf: bool = False

    async def live(self) -> None:
        worker = Worker(
            f"conductor.{CELL}",
            consumes=[
                on(MOVE_PLACED.at(cell=CELL), self._on_placed),
                on(Address(MOVE_REFUSED, "move.refused.#"), self._on_refused, private=True),
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


ROOMY = 8
GROUP = uid(1, "9")


@asynccontextmanager
async def a_cell(*schedulers: str) -> AsyncIterator[WaitingMovers]:
    async with waiting_world(*schedulers) as world, waiting_movers(world) as movers:
        yield movers


async def waits(movers: WaitingMovers, several: int = 1) -> None:
    await asyncio.sleep(1.0)
    assert len(await movers.waiting()) == several
    assert (movers.placed, movers.refused) == ([], [])


def went(placed: MovePlaced) -> str:
    assert placed.chosen is not None
    return placed.chosen.host


@in_virtual_time
async def test_a_waiting_move_begins_after_the_answer_to_its_claim_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluate, lost = WaitingMoves.evaluate, [Unavailable("the answer was lost after the claim")]

    async def claimed(self: WaitingMoves, woken: Any) -> Any:
        results = await evaluate(self, woken)
        if lost and any(isinstance(result, Ended) for result in results):
            raise lost.pop()
        return results

    monkeypatch.setattr(WaitingMoves, "evaluate", claimed)
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        await movers.host(2, TWO.vcpus)  # no capacity is left after the claim
        await movers.world.until(1, movers.placed)
        assert not lost and went(movers.placed[0]) == "host-2"
        movers.has_moved(movers.placed[0])
        await asyncio.sleep(5.0)
        assert ((await movers.world.waiting()).count, len(movers.placed), movers.refused) == (0, 1, [])


@in_virtual_time
async def test_a_waiting_move_is_cancelled_by_its_id() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        await movers.world.say(BuildCancelRequested(build=build))
        await movers.world.until(1, movers.world.cancelled)
        assert not movers.world.cancelled[0].waited
        await waits(movers)
        await movers.world.say(BuildCancelRequested(build=MOVE, reply_to="me"))
        await movers.world.until(2, movers.world.cancelled)
        assert (movers.world.cancelled[1].waited, movers.world.cancelled[1].reply_to) == (True, "me")
        await movers.world.until(1, movers.refused)
        assert movers.refused[0].code == "cancelled"
        await movers.host(2, ROOMY)
        await asyncio.sleep(1.0)
        await movers.ask(build)
        await movers.world.until(2, movers.refused)
        assert (movers.refused[1].reason, movers.refused[1].code) == (movers.refused[0].reason, "cancelled")
        assert (movers.placed, await movers.waiting()) == ([], [])
        await movers.ask(build, 2)
        await movers.world.until(1, movers.placed)


@in_virtual_time
async def test_one_move_of_an_instance_waits_at_a_time() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build, 1)
        await movers.ask(build, 1)  # the client repeats its request
        await asyncio.sleep(0.5)
        await movers.ask(build, 2, "live")
        await movers.world.until(1, movers.refused)
        reply = movers.refused[0]
        assert (reply.move, reply.code) == (uid(2, "e"), "moving")
        assert reply.reason == f"another move of it waits for room: {MOVE}"
        await movers.world.say(BuildCancelRequested(build=MOVE))
        await movers.world.until(2, movers.refused)
        await movers.ask(build, 3)
        await asyncio.sleep(0.5)
        assert [request.request for request in await movers.waiting()] == [uid(3, "e")]


async def deleted(movers: WaitingMovers, build: str) -> None:
    await movers.is_deleted(build)


async def forgotten(movers: WaitingMovers, build: str) -> None:
    await movers.is_deleted(build)
    del movers.stands[build]


async def in_another_move(movers: WaitingMovers, build: str) -> None:
    movers.change(build, status="moving", move=uid(7, "e"))


async def shelved(movers: WaitingMovers, build: str) -> None:
    movers.change(build, status="shelved", generation=None, chosen=None)


ENDS = [
    (deleted, "status", "it is deleted; this move needs an instance that is active: migrate"),
    (forgotten, "unknown", "cell 'c1' does not know of such a build, and it holds nothing"),
    (in_another_move, "moving", f"it is in another move, {uid(7, 'e')}"),
    (shelved, "status", "it is shelved; this move needs an instance that is active: migrate"),
]


@pytest.mark.parametrize(("happens", "code", "why"), ENDS, ids=[row[0].__name__ for row in ENDS])
@in_virtual_time
async def test_the_end_of_the_instance_ends_the_wait(
    happens: Callable[[WaitingMovers, str], Awaitable[None]], code: str, why: str
) -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        await happens(movers, build)
        await asyncio.sleep(3.0)
        assert [(move.code, move.reason) for move in movers.refused] == [(code, why)]
        assert (movers.placed, await movers.waiting()) == ([], [])


@in_virtual_time
async def test_a_waiting_move_whose_evaluation_ended_four_schedulers_is_refused() -> None:
    async with a_cell("s1") as movers:
        move = await movers.ask(await movers.boot(1, on=1))
        await waits(movers)
        await movers.world.kill("s1")
        async with movers.world.kept.write() as tx:
            await queued.strike(tx, {move.move: MAX_STRIKES})
        await movers.host(2, ROOMY)
        await movers.world.scheduler("s2")
        await movers.world.until(1, movers.refused)
        assert [(move.code, move.reason) for move in movers.refused] == [("crashed", WHY)]
        assert (movers.placed, await movers.waiting()) == ([], [])


@in_virtual_time
async def test_an_instance_that_moved_can_return_to_its_former_host() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.host(3, 0)
        await movers.ask(build)
        await waits(movers)
        await movers.was_moved(build, 3)
        await movers.world.until(1, movers.placed)
        assert (went(movers.placed[0]), movers.placed[0].attempt) == ("host-1", 2)


@in_virtual_time
async def test_a_move_continues_to_wait_while_its_cell_does_not_answer() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        movers.deaf = True
        await movers.host(2, ROOMY)
        await movers.events(20.0, of=2)
        assert (movers.placed, movers.refused) == ([], [])
        movers.deaf = False
        await movers.events(20.0, of=2)
        assert [went(placed) for placed in movers.placed] == ["host-2"]


@in_virtual_time
async def test_waiting_moves_of_a_dead_scheduler_are_adopted() -> None:
    async with a_cell("s1") as movers:
        builds = [await movers.boot(number, on=1) for number in (1, 2)]
        for index, build in enumerate(builds, 1):
            await movers.ask(build, index, wait="60s" if index == 2 else "30m")
        await waits(movers, 2)
        await movers.world.kill("s1")
        await movers.world.scheduler("s2")
        await asyncio.sleep(10.0)
        await movers.host(2, 2)
        await movers.world.until(1, movers.placed)
        assert movers.placed[0].move == uid(1, "e")
        await asyncio.sleep(60.0)
        assert [(move.move, move.code) for move in movers.refused] == [(uid(2, "e"), "waited")]


SMALL, LARGE = Flavor(name="small", vcpus=1), Flavor(name="large", vcpus=4)


async def a_member(world: WaitingWorld) -> BuildPlaced:
    make = MakeGroup(group=GROUP, name="together", policy="affinity")
    await world.bus.asker(EDIT_GROUP)(GroupEditRequested(edit=make))
    await world.report(1, {"VCPU": Inventory(total=2)})
    await asyncio.sleep(0.2)
    await world.ask(1, flavor=SMALL, parts=in_group(GROUP), wait="")
    await world.until(1, world.placed)
    await world.report(2, {"VCPU": Inventory(total=8)})
    await asyncio.sleep(0.2)
    return world.placed.pop()[1]


@in_virtual_time
async def test_a_new_instance_wakes_requests_with_same_host() -> None:
    async with waiting_world() as world:
        for number in (1, 2):
            await world.report(number, {"VCPU": Inventory(total=8)})
        await world.ask(2, flavor=SMALL, hints=Hints(same_host=(uid(1000, "b"),)))
        await asyncio.sleep(5.0)
        assert world.placed == []
        await world.ask(1, flavor=SMALL, wait="")
        await world.until(2, world.placed)
        assert world.placed[1][0] - world.placed[0][0] < 1.2
        assert len(set(world.hosts())) == 1


@in_virtual_time
async def test_a_request_waiting_for_a_deleted_group_ends() -> None:
    async with waiting_world() as world:
        await a_member(world)
        await world.ask(2, flavor=LARGE, parts=in_group(GROUP))
        await asyncio.sleep(5.0)
        assert world.unplaceable == []
        before = world.clock.monotonic()
        drop = GroupEditRequested(edit=DropGroup(group=GROUP, force=True))
        await world.bus.asker(EDIT_GROUP)(drop)
        await world.until(1, world.unplaceable)
        assert world.clock.monotonic() - before < 1.5
        assert "there is no server group" in world.unplaceable[0].reason
        assert (await world.waiting()).count == 0


async def called(world: WaitingWorld, name: str, sequence: int, **given: Any) -> None:
    """Report host 1 under another name."""
    await world.bus.publish(msgspec.structs.replace(a_report(1, sequence=sequence, **given), host=name))


@in_virtual_time
async def test_a_request_for_a_renamed_host_waits_for_the_name(caplog: pytest.LogCaptureFixture) -> None:
    async with waiting_world() as world:
        await called(world, "east-1", 1, inventories={"VCPU": Inventory(total=1)})
        await asyncio.sleep(0.5)
        await world.ask(1, flavor=LARGE, forced_host="east-1")
        await world.ask(2)
        await asyncio.sleep(2.0)
        await called(world, "west-1", 2, inventories={"VCPU": Inventory(total=8)})
        await asyncio.sleep(2.0)
        await world.node(50)
        await world.until(1, world.placed)
        assert world.requests() == [uid(2, "a")]
        await called(world, "east-1", 3, inventories={"VCPU": Inventory(total=8)})
        await world.until(2, world.placed)
        assert world.requests()[1] == uid(1, "a")
        assert [record.message for record in caplog.records if record.exc_info] == []


SEVERAL = 3


async def cancelled(world: WaitingWorld) -> None:
    for number in range(1, SEVERAL + 1):
        await world.bus.publish(BuildCancelRequested(build=uid(number, "a")))
