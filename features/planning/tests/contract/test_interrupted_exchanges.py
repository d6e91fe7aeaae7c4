"""Schedulers undo an exchange of two instances whose client was killed after the first of its two moves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from berth.features import packages
from berth.operations import publishing
from bus import topics
from bus.claims import STARTED, Retired
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Worker, answers, on
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_PROGRESS,
    MOVE_REFUSED,
    MOVE_REQUESTED,
    MoveRequested,
    MoveStands,
)
from features.moves.moving import FollowedMoves, MoveListener, following
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.planning.exchanges import NOTE, STOPPED_SECONDS, ExchangeGuard
from features.planning.host_holds import HostHolds
from features.planning.messages import (
    GUARD_EXCHANGE,
    SWITCH_BALANCING,
    BalanceMove,
    GuardExchange,
    PlannedStep,
    SwitchBalancing,
)
from features.planning.planned_moves import MovesDone, PlannedMoves
from placement_worker import IndexedSource
from scheduler_worker.dependencies import Ending
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.schedulers import queries_of
from tests.support.virtual_time import TurnedClock

REPORTED = MOVE_PROGRESS, MOVE_REFUSED
H1, H2 = uid(1, "a"), uid(2, "a")


def a_step(build: int, source: int, destination: int) -> PlannedStep:
    return PlannedStep(
        build=uid(build), kind="live", cell="c1", source=uid(source, "a"), source_host=f"host-{source}",
        destination=uid(destination, "a"), destination_host=f"host-{destination}", holder=uid(build, "b"),
    )  # fmt: skip


EXCHANGE = BalanceMove(steps=(a_step(1, 1, 2), a_step(2, 2, 1)), gain=0.3)


@dataclass
class ExchangingCell:
    """A cell with instance 1 on host 1 and instance 2 on host 2, two schedulers with one database, and a real
    placement that fences moves.
    """

    bus: Bus
    clock: TurnedClock
    movers: FakeMovers
    guards: tuple[ExchangeGuard, ExchangeGuard]
    holds: HostHolds
    ending: Ending
    not_destroyed: set[str]  # holders of guests that an agent has not destroyed yet

    async def carries_out(self, request: MoveRequested) -> list[Message]:
        """Move an instance as schedulers and its cell do: once, and only if the move is not fenced."""
        self.movers.asked.append(request)
        before = await self.ending.retire(request.move, STARTED, unplaceable=False)
        if isinstance(before, Retired) and before.why != STARTED:
            return [self.movers.refused(request)]
        self.ends(request, "done")
        return self.movers.well(request)

    def ends(self, request: MoveRequested, phase: str) -> None:
        self.movers.moves[request.move] = MoveStands(
            move=request.move, build=request.build, kind=request.kind, cell="c1", phase=phase,
            ended=self.clock.now if phase == "done" else 0.0,
        )  # fmt: skip

    async def step(self, seconds: float = 3.0) -> list[MoveRequested]:
        """Return what the two schedulers request after this time."""
        self.clock.now += seconds
        return [request for guard in self.guards for request in await guard.step()]

    async def half_done(self) -> list[str]:
        state = await self.holds.switch_balancing(SwitchBalancing())
        return [step.build for step in state.half_done]

    async def client(self, waits: Callable[[], Any] | None = None) -> MovesDone:
        """Exchange the two instances as `berth rebalance` does; await `waits` between the two moves."""
        async with following(self.bus, "balance", MoveListener()) as followed:
            moves = PlannedMoves(self.bus, followed, MoveListener(), 1, "rebalance", "")
            released = moves.released

            async def between(steps: list[PlannedStep]) -> bool:
                if waits is not None:
                    await waits()
                return await released(steps)

            moves.released = between  # type: ignore[method-assign, assignment]
            await moves.exchange(EXCHANGE)
            return moves.done

    async def killed_client(self) -> None:
        """Run a client until it is killed between the two moves of its exchange."""
        moved = asyncio.Event()

        async def waits() -> None:
            moved.set()
            await asyncio.Event().wait()

        client = asyncio.create_task(self.client(waits))
        await moved.wait()
        client.cancel()
        with suppress(asyncio.CancelledError):
            await client
        assert [request.build for request in self.movers.asked] == [uid(1)]


@pytest.fixture
async def cell(open_database: Callable[..., Database]) -> AsyncIterator[ExchangingCell]:
    database, broker, clock, movers = open_database(), LocalBroker(), TurnedClock(), FakeMovers()
    await migrate(database, *packages("scheduler"))
    movers.have(an_instance_there(1, 1), an_instance_there(2, 2))
    not_destroyed: set[str] = set()

    async def allocations(asked: FindAllocations) -> AllocationsFound:
        held = [id_ for id_ in asked.consumers if id_ in not_destroyed]
        consumers = [
            Consumer(id=id_, generation=1, project="p", user="", type="MIGRATION", allocations={})
            for id_ in held
        ]
        return AllocationsFound(consumers=tuple(consumers), generations={})

    async def carries_out(request: MoveRequested) -> list[Message]:
        return await site.carries_out(request)

    async with a_placement("sqlite+aiosqlite://") as placement:
        queries = replace(queries_of(placement), allocations=allocations)
        ending = Ending(queries, clock.clock, 60.0)
        find = movers.find_moves
        first, second = (ExchangeGuard(database, queries, find, ending, clock.clock) for _ in range(2))
        holds = HostHolds(database, queries, IndexedSource(placement.memory), clock.clock)
        scheduler = Worker(
            "scheduler",
            consumes=[on(MOVE_REQUESTED, carries_out, emits=[MOVE_ENDED, *REPORTED])],
            answers=[
                answers(FIND_MOVES, movers.find_moves, cell="c1"),
                answers(GUARD_EXCHANGE, first.store),
                answers(SWITCH_BALANCING, holds.switch_balancing),
                answers(topics.ALLOCATIONS, allocations),
            ],
        )
        async with serving(lambda: LocalTransport(broker), scheduler) as bus:
            site = ExchangingCell(bus, clock, movers, (first, second), holds, ending, not_destroyed)
            yield site


async def _unused(asked: object) -> Any:
    raise AssertionError(f"unexpected query {asked}")


async def test_an_exchange_whose_client_is_killed_is_undone_once(cell: ExchangingCell) -> None:
    await cell.killed_client()
    assert await cell.step(100) == []  # the client may still request the second move
    assert await cell.step(21) == [] and await cell.half_done() == []  # its id is fenced
    [request] = await cell.step()
    assert (request.build, request.source, request.wanted_host) == (uid(1), H2, H1)
    assert (request.plan, request.note) == ("undo", NOTE)
    assert await cell.step() == [request]  # no cell has a record of it yet
    assert await cell.half_done() == [uid(1)]
    cell.ends(request, "send")
    assert await cell.step() == []
    cell.ends(request, "done")
    assert await cell.step() == [] and await cell.half_done() == []
    assert not any([await guard.step() for guard in cell.guards for _ in range(3)])


async def test_a_client_that_was_only_slow_does_not_move_an_instance_twice(cell: ExchangingCell) -> None:
    undoing = list[MoveRequested]()

    async def waits() -> None:
        if not undoing:
            await cell.step(200)
            undoing.extend(await cell.step())

    done = await cell.client(waits)
    assert [request.move for request in cell.movers.asked[2:]] == [request.move for request in undoing]
    assert ([step.build for step in done.undone], done.moved, [*done.failed]) == ([uid(1)], [], [uid(2)])
    assert [each.host for each in cell.movers.builds.values()] == ["host-1", "host-2"]
    assert await cell.step() == [] and await cell.half_done() == []


async def test_an_exchange_is_forgotten_when_both_moves_are_done(cell: ExchangingCell) -> None:
    done = await cell.client()
    assert [step.build for step in done.moved] == [uid(1), uid(2)]
    cell.movers.looked = 0  # the client reads the records of its moves, too
    assert [await cell.step(121), await cell.step(), await cell.half_done()] == [[]] * 3
    assert cell.movers.looked == 1


async def test_no_exchange_is_undone_while_an_operator_has_stopped_rebalancing(cell: ExchangingCell) -> None:
    await cell.killed_client()
    await cell.holds.switch_balancing(SwitchBalancing(stop=True))
    assert [await cell.step(121), await cell.step(STOPPED_SECONDS), await cell.step(1000)] == [[]] * 3
    assert await cell.half_done() == [uid(1)]
    await cell.holds.switch_balancing(SwitchBalancing(stop=False))
    assert [request.build for request in await cell.step(STOPPED_SECONDS)] == [uid(1)]


async def test_an_undo_waits_for_the_former_host(cell: ExchangingCell) -> None:
    await cell.killed_client()
    cell.not_destroyed.add(uid(1, "b"))
    assert [await cell.step(121), await cell.step(), await cell.step()] == [[]] * 3
    cell.not_destroyed.clear()
    assert len(await cell.step()) == 1


async def test_a_first_move_that_was_never_requested_is_fenced(cell: ExchangingCell) -> None:
    guard = GuardExchange(exchange=uid(9), steps=EXCHANGE.steps)
    await cell.guards[0].store(guard)
    assert [await cell.step(119), await cell.step(2), await cell.step()] == [[]] * 3
    late = MoveRequested(move=guard.move("first"), build=uid(1), kind="live", cell="c1")
    assert await cell.carries_out(late) == [cell.movers.refused(late)]
    assert cell.movers.looked == 2


async def test_an_exchange_is_not_begun_if_no_scheduler_stores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_REPEAT_SECONDS", 0.0)
    ask, followed = AsyncMock(side_effect=Unavailable("killed")), Mock(FollowedMoves, ask=AsyncMock())
    clock = Mock(monotonic=Mock(side_effect=[0.0, 30.0, 61.0]))
    bus = Mock(asker=lambda _: ask, clock=clock)
    moves = PlannedMoves(bus, followed, MoveListener(), 1, "rebalance", "")
    assert not await moves.exchange(EXCHANGE)
    assert moves.done.failed == {uid(1): "killed", uid(2): "killed"}
    assert (ask.await_count, followed.ask.await_count) == (2, 0)
