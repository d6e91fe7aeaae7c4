"""A simulated agent that moves guests, without a bus, and builders of its orders."""

from math import inf
from typing import Any

from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.requests import BuildSpec, Flavor, Image
from compute_sim.extension import AgentDisk, SimOptions, SimulatedAgent
from compute_sim.testing import CrashPlan, FaultPlan, Hardware, HostTrees, SimAgent, fleet
from features.moves.agent_moves import SimulatedMoves
from features.moves.messages import MoveKind, MoveOrdered, MovePhase, MoveReported
from tests.support.ids import uid

(_AGENT,) = fleet(("c1",), 2, hardware=Hardware(vcpus=4, vcpu_ratio=1.0))
SOURCE, DESTINATION = (host.root for host in _AGENT.hosts)
NAMES = {host.root: host.host for host in _AGENT.hosts}
BUILD, MOVE = uid(1, "b"), uid(1, "e")


def a_spec(vcpus: int = 1, image: str = "") -> BuildSpec:
    return BuildSpec(flavor=Flavor(name="f", vcpus=vcpus), image=Image(name=image) if image else None)


def a_build(attempt: int = 1, root: str = SOURCE, vcpus: int = 1, build: str = BUILD) -> BuildOrdered:
    return BuildOrdered(
        build=build, attempt=attempt, cell="c1", agent="a1", root=root, host=NAMES[root], spec=a_spec(vcpus)
    )


def an_order(
    phase: MovePhase, step: int, attempt: int, root: str = SOURCE, kind: MoveKind = "migrate", **more: Any
) -> MoveOrdered:
    given: dict[str, Any] = {"spec": a_spec(), "move": MOVE, "build": BUILD} | more
    return MoveOrdered(
        phase=phase, step=step, attempt=attempt, root=root, host=NAMES[root], kind=kind, cell="c1",
        agent="a1", **given,
    )  # fmt: skip


def a_destroy(attempt: int, root: str = SOURCE, above: int = 0) -> DestroyOrdered:
    return DestroyOrdered(
        build=BUILD, attempt=attempt, cell="c1", agent="a1", root=root, host=NAMES[root], above=above
    )


class MovingAgent:
    def __init__(
        self, disk: AgentDisk | None = None, faults: FaultPlan | None = None, ask: Any = None, **crash: Any
    ) -> None:
        self.disk = disk or AgentDisk()
        self.trees = HostTrees(SimAgent("a1", "c1", _AGENT.hosts), self.disk)
        options = SimOptions(faults=faults or FaultPlan(), crashes=CrashPlan(**crash))
        self.does = SimulatedAgent("a1", options, self.disk, self.trees.use_changed, ask)
        self.does.absent_after = inf
        self.moves = SimulatedMoves(self.does)

    async def build(self, *orders: BuildOrdered) -> "MovingAgent":
        for order in orders or (a_build(),):
            reply = await self.does.build(order)
            assert reply is not None and reply.outcome == "built", reply
        return self

    async def move(self, *orders: MoveOrdered) -> list[str]:
        return [sent(await self.moves.move(order)) for order in orders]

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        return await self.does.destroy(order)

    def guests(self) -> dict[int, tuple[str, str]]:
        awake = {(record.build, record.attempt) for record in self.disk.running()}
        return {
            guest.attempt: (
                "source" if guest.root == SOURCE else "destination",
                f"({guest.state})" if guest.state == "running" and (guest.build, guest.attempt) not in awake
                else guest.state,
            )
            for guest in self.disk.all_guests
            if guest.build == BUILD
        }  # fmt: skip


def sent(reply: MoveReported | None) -> str:
    if reply is None:
        return "nothing"
    return (
        reply.outcome
        + (f": {reply.cause}" if reply.cause else "")
        + (" (left over)" if reply.leftover else "")
    )
