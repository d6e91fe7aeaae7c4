"""Agents that share the queues of their cell: what the gateway relays, keeps and merges, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from bus.clock import Clock
from bus.delivery.runner import Bus, Listener
from bus.errors import NoAnswer, Poison, Retry, Unavailable
from bus.guests import GuestsAsked
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered, HostReported
from bus.protocol import decode, encode
from bus.reports import HostState
from bus.topics import AGENT_BUILD, AGENT_DESTROY, AGENT_REPORT
from bus.worker import Worker, on
from compute_sim.extension import AgentDisk, SimOptions
from compute_sim.testing import Durations, FaultPlan, compute_sim, fleet
from features.shared_queues.gateway import (
    LATER,
    LONGEST_PAUSE,
    MOST_OF_AN_AGENT,
    SOON,
    MergingHeartbeats,
    RelayedOrderFailed,
    RelayingOrders,
    agent_gateway,
    relayed,
)
from features.shared_queues.messages import (
    AGENT_ORDER,
    ANSWER_SECONDS,
    HEARTBEATS_MERGED,
    MOST_MERGED,
    HeartbeatRelayed,
    HeartbeatsMerged,
    OrderAnswered,
    OrderRelayed,
)
from features.shared_queues.relayed_orders import RelayedOrders, with_shared_queues
from tests.support.conductor_builders import CELL, a_build_order, a_placed, an_agent_report
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time

FIRST = a_build_order(a_placed(1), 1)  # for agent0
SECOND = replace(a_build_order(a_placed(2), 1), agent="agent1")
SLOW = FaultPlan(durations=Durations.parse("constant:60"))
RELAYED = relayed(FIRST)


@dataclass
class SharedCell:
    """A cell with a gateway and agents that can be killed, on a bus inside this process."""

    broker: LocalBroker
    bus: Bus
    reports: Listener[AgentReported]
    merged: Listener[HeartbeatsMerged]
    group: asyncio.TaskGroup
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    disks: dict[str, AgentDisk] = field(default_factory=dict)

    async def start(self, name: str, faults: FaultPlan | None = None) -> None:
        self.lives[name] = self.group.create_task(self._live(name, faults or FaultPlan()))
        await asyncio.sleep(0.01)

    async def kill(self, name: str) -> None:
        self.lives[name].cancel()
        await asyncio.wait([self.lives[name]])

    async def _live(self, name: str, faults: FaultPlan) -> None:
        async with Bus(LocalTransport(self.broker)) as bus:
            if name.startswith("gateway"):
                worker = agent_gateway(CELL, bus.asker(AGENT_ORDER, timeout=ANSWER_SECONDS), bus.clock)
            else:
                worker = with_shared_queues(self._agent(name, faults), bus.publish, bus.clock)
            await bus.serve(worker, asyncio.Event())

    def _agent(self, name: str, faults: FaultPlan) -> Worker:
        [simulated] = fleet(cells=1, hosts=1)
        disk = self.disks.setdefault(name, AgentDisk())
        return compute_sim(replace_agent(simulated, name), SimOptions(faults=faults, period=2.0), disk=disk)

    def kept(self) -> int:
        """Return how many orders the broker holds, in queues, delayed or unacknowledged."""
        waiting = sum(len(queue.items) for name, queue in self.broker.queues.items() if "agent." in name)
        return waiting + self.broker.delayed


def replace_agent(simulated: Any, name: str) -> Any:
    return type(simulated)(name, CELL, simulated.hosts)


@asynccontextmanager
async def a_cell(*agents: str, faults: FaultPlan | None = None) -> AsyncIterator[SharedCell]:
    broker = LocalBroker()
    async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
        merged = await bus.listen(HEARTBEATS_MERGED.at())
        cell = SharedCell(broker, bus, await bus.listen(AGENT_REPORT.at(cell=CELL)), merged, group)
        for name in ("gateway", *agents):
            await cell.start(name, faults)
        try:
            yield cell
        finally:
            for life in cell.lives.values():
                life.cancel()


async def soon(listener: Listener[AgentReported], seconds: float = 120.0) -> AgentReported:
    async with asyncio.timeout(seconds):
        return await listener.get()


async def nothing_more(listener: Listener[AgentReported]) -> bool:
    with pytest.raises(TimeoutError):
        await soon(listener)
    return True


# A cell with gateway and agents


@in_virtual_time
async def test_an_order_longer_than_any_query_is_carried_out_once() -> None:
    async with a_cell("agent0", faults=SLOW) as cell:
        await cell.bus.publish(FIRST)
        await asyncio.sleep(30.0)
        assert cell.disks["agent0"].guests == {FIRST.build: {1: FIRST.root}}
        assert await soon(cell.reports) == an_agent_report(FIRST, "built")
        assert await nothing_more(cell.reports)
        assert cell.kept() == 0


@in_virtual_time
async def test_orders_of_an_absent_agent_wait_and_others_are_not_delayed() -> None:
    async with a_cell("agent1") as cell:
        orders = [a_build_order(a_placed(number), 1) for number in range(10, 50)]
        await cell.bus.publish(*orders)
        await asyncio.sleep(60.0)
        async with asyncio.timeout(0.5):
            await cell.bus.publish(SECOND)
            assert (await cell.reports.get()).build == SECOND.build
        assert cell.kept() >= len(orders) - 1  # one order may be in delivery to the agent
        await cell.start("agent0")
        built = {(await soon(cell.reports, 2 * LONGEST_PAUSE)).build for _ in orders}
        assert built == {order.build for order in orders}


@in_virtual_time
async def test_an_order_of_a_killed_agent_is_carried_out_after_its_restart() -> None:
    async with a_cell("agent0", faults=SLOW) as cell:
        await cell.bus.publish(FIRST)
        await asyncio.sleep(20.0)
        await cell.kill("agent0")
        await asyncio.sleep(5.0)
        await cell.start("agent0")
        assert await soon(cell.reports) == an_agent_report(FIRST, "built")
        assert await nothing_more(cell.reports)


@in_virtual_time
@pytest.mark.parametrize("after", [0.06, 3.0])
async def test_no_order_is_lost_or_carried_out_twice_if_the_gateway_is_killed(after: float) -> None:
    async with a_cell("agent0", faults=FaultPlan(durations=Durations.parse("constant:4"))) as cell:
        orders = [a_build_order(a_placed(number), 1) for number in range(10, 30)]
        await cell.bus.publish(*orders)
        await asyncio.sleep(after)
        await cell.kill("gateway")
        await asyncio.sleep(1.0)
        await cell.start("gateway")
        built = {(await soon(cell.reports)).build for _ in orders}
        assert built == {order.build for order in orders}
        await asyncio.sleep(120.0)
        assert cell.kept() == 0 and not cell.broker.dead


@in_virtual_time
async def test_agents_declare_no_durable_queue() -> None:
    async with a_cell("agent0", "agent1") as cell:
        durable = [queue.spec.name for queue in cell.broker.queues.values() if queue.spec.durable]
        orders = {f"gateway.{CELL}:agent.{order}.{CELL}.*" for order in ("asked", "build", "destroy")}
        assert {*durable} >= {*orders, f"gateway.{CELL}:suspects"}
        assert all(name.startswith("gateway.") for name in durable)


@in_virtual_time
async def test_heartbeats_of_a_second_are_one_message_and_a_silent_agent_is_missing_in_it() -> None:
    async with a_cell("agent0", "agent1", "agent2") as cell:
        await asyncio.sleep(10.0)
        await cell.kill("agent1")
        await asyncio.sleep(3.0)
        while True:  # earlier messages
            try:
                async with asyncio.timeout(0):
                    await cell.merged.get()
            except TimeoutError:
                break
        async with asyncio.timeout(20.0):
            found = [await cell.merged.get() for _ in range(5)]
        assert {report.agent for message in found for report in message.reports} == {"agent0", "agent2"}


@in_virtual_time
async def test_two_gateways_publish_each_heartbeat_once() -> None:
    async with a_cell("agent0", "agent1") as cell:
        await asyncio.sleep(0.37)
        await cell.start("gateway's twin")
        await asyncio.sleep(100.0)
        await cell.kill("gateway")
        await asyncio.sleep(100.0)
        seen = []
        with pytest.raises(TimeoutError):
            while True:
                async with asyncio.timeout(0):
                    seen += [(one.agent, one.sequence) for one in (await cell.merged.get()).reports]
        assert len(seen) == len(set(seen))
        assert len(seen) >= 190  # two agents, each 2 s


# The gateway alone


def answering(*answers: OrderAnswered | Exception) -> tuple[RelayingOrders, list[OrderRelayed]]:
    asked: list[OrderRelayed] = []
    left = list(answers)

    async def relay(order: OrderRelayed) -> OrderAnswered:
        asked.append(order)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return RelayingOrders(relay, Clock()), asked


@pytest.mark.parametrize(
    ("answer", "problem", "after"),
    [
        (OrderAnswered(state="working", seconds=0.1), Retry, SOON),
        (OrderAnswered(state="working", seconds=60.0), Retry, LATER),
        (OrderAnswered(state="later", seconds=2.0), Retry, 2.0),
        (OrderAnswered(state="later", seconds=1e9), Retry, LATER),
        (OrderAnswered(state="refused", why="no such order"), Poison, None),
        (OrderAnswered(state="failed", why="KeyError: 7"), RelayedOrderFailed, None),
        (NoAnswer("no answer"), Retry, 0.5),
    ],
)
async def test_an_order_is_kept_until_it_is_handled(
    answer: OrderAnswered | Exception, problem: type[Exception], after: float | None
) -> None:
    orders, asked = answering(answer, OrderAnswered(state="handled"))
    with pytest.raises(problem) as raised:
        await orders.relay(FIRST)
    if isinstance(raised.value, Retry):
        assert raised.value.after == after
    await orders.relay(FIRST)
    assert asked == [RELAYED, RELAYED]


@pytest.mark.parametrize("answer", [NoAnswer("away"), OrderAnswered(state="refused", why="no such order")])
async def test_a_question_for_guests_does_not_wait_for_an_agent(answer: OrderAnswered | Exception) -> None:
    orders, asked = answering(answer)
    await orders.ask_for_guests(GuestsAsked(cell=CELL, agent="agent0", builds=(), reply_to="me"))
    assert len(asked) == 1


async def test_a_silent_agent_is_asked_by_one_order_at_a_time_and_a_busy_one_by_a_limited_number() -> None:
    answer: asyncio.Future[OrderAnswered] = asyncio.get_running_loop().create_future()
    asked: list[OrderRelayed] = []

    async def relay(order: OrderRelayed) -> OrderAnswered:
        asked.append(order)
        return await asyncio.shield(answer)

    orders = RelayingOrders(relay, Clock())
    async with asyncio.TaskGroup() as group:
        some = [group.create_task(refused_or_not(orders, FIRST)) for _ in range(2 * MOST_OF_AN_AGENT)]
        other = group.create_task(refused_or_not(orders, SECOND))
        await asyncio.sleep(0)
        assert len(asked) == MOST_OF_AN_AGENT + 1
        answer.set_exception(NoAnswer("silent"))
    assert all(isinstance(task.result(), Retry) for task in (*some, other))
    answer = asyncio.get_running_loop().create_future()
    asked.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(refused_or_not(orders, FIRST))
        await asyncio.sleep(0)
        assert len(asked) == 1
        answer.set_result(OrderAnswered(state="handled"))
    await orders.relay(FIRST)  # the agent answers again


async def test_the_gateway_drops_orders_for_a_removed_agent() -> None:
    asked: list[OrderRelayed] = []

    async def relay(order: OrderRelayed) -> OrderAnswered:
        asked.append(order)
        return OrderAnswered(state="handled")

    removed = set[str]()
    orders = RelayingOrders(relay, Clock(), removed)
    await orders.relay(FIRST)
    removed.add(FIRST.agent)
    await orders.relay(FIRST)
    assert [order.agent for order in asked] == [FIRST.agent]


async def refused_or_not(orders: RelayingOrders, order: BuildOrdered) -> Exception | None:
    try:
        await orders.relay(order)
    except Retry as problem:
        return problem
    return None


def a_beat(number: int, hosts: int = 1, images: int = 0) -> HeartbeatRelayed:
    states = tuple(
        HostState(root=uid(1000 * number + host), host=f"h{host}", images=("x" * 255,) * images)
        for host in range(hosts)
    )
    return HeartbeatRelayed(cell=CELL, agent=f"agent{number}", sequence=number, run="r", hosts=states)


@pytest.mark.parametrize(
    "beats",
    [
        [a_beat(number) for number in range(1000)],
        [a_beat(number, hosts=0) for number in range(600)],
        [a_beat(1), a_beat(2, hosts=2 * MOST_MERGED), a_beat(3)],
        [a_beat(number, images=1000) for number in range(10)],
    ],
    ids=["many", "without hosts", "a large agent", "large heartbeats"],
)
async def test_every_heartbeat_is_in_a_message_of_bounded_size(beats: Sequence[HeartbeatRelayed]) -> None:
    merging = MergingHeartbeats(CELL)
    for beat in beats:
        await merging.add(beat)
    merged = await merging.merge()
    read = [decode(HeartbeatsMerged, encode(message)) for message in merged]
    reports = [report for message in read for report in message.reports]
    assert [report.agent for report in reports] == [beat.agent for beat in beats]
    assert {type(report) for report in reports} == {HostReported}
    for message in merged:
        if len(message.reports) > 1:
            assert sum(len(report.hosts) for report in message.reports) <= MOST_MERGED
            assert len(encode(message)) < 600_000
    assert await merging.merge() == []


def test_a_cell_cannot_send_heartbeats_of_another_cell() -> None:
    beat = replace(a_beat(1), cell="another")
    with pytest.raises(ValueError, match="another cell"):
        HeartbeatsMerged(cell=CELL, reports=(beat,))


# The agent alone


@dataclass
class HandledOrders:
    """The order handlers of an agent: they raise given errors; published messages are recorded."""

    problems: list[Exception] = field(default_factory=list)
    builds: int = 0
    published: list[object] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def build(self, order: BuildOrdered) -> AgentReported:
        self.builds += 1
        if self.problems:
            raise self.problems.pop()
        await self.may_end.wait()
        return an_agent_report(order, "built")

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        return an_agent_report(FIRST, "destroyed")

    async def publish(self, *messages: object) -> None:
        self.published += messages

    @asynccontextmanager
    async def relayed(self) -> AsyncIterator[RelayedOrders]:
        rows = [
            on(AGENT_BUILD.at(cell=CELL, agent="agent0"), self.build, emits=[AGENT_REPORT]),
            on(AGENT_DESTROY.at(cell=CELL, agent="agent0"), self.destroy, emits=[AGENT_REPORT]),
        ]
        orders = RelayedOrders(rows, self.publish, Clock())
        async with asyncio.TaskGroup() as group:
            running = group.create_task(orders.run())
            yield orders
            running.cancel()


@pytest.mark.parametrize(
    ("problem", "state", "seconds"),
    [
        (Retry(3.0), "later", 3.0),
        (Unavailable("placement is away"), "later", 1.0),
        (Poison("never"), "refused", 0.0),
        (KeyError(7), "failed", 0.0),
    ],
)
async def test_a_handler_that_fails_answers_what_becomes_of_the_order(
    problem: Exception, state: str, seconds: float
) -> None:
    handled = HandledOrders([problem])
    handled.may_end.set()
    async with handled.relayed() as orders:
        answer = await orders.answer(RELAYED)
        assert (answer.state, answer.seconds) == (state, seconds)
        assert answer.why
        assert (await orders.answer(RELAYED)).state == "handled"  # tried again


async def test_an_order_that_an_agent_does_not_take_is_refused() -> None:
    async with HandledOrders().relayed() as orders:
        asked = relayed(GuestsAsked(cell=CELL, agent="agent0", builds=(), reply_to="me"))
        answer = await orders.answer(asked)
        assert (answer.state, answer.why) == ("refused", "agent agent0 takes no GuestsAsked")
