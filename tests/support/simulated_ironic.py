"""Simulated Ironics: one with a node and actions by name, and one on a loopback port."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bus.clock import Clock
from bus.http import listen
from compute_sim.ironic.api import Api
from compute_sim.ironic.conductor import Conductor, SimPlan
from compute_sim.ironic.node import SimNode, enrolled
from compute_sim.ironic.notifications import SentNotification
from compute_sim.ironic.patching import ApiRefusal
from compute_sim.ironic.simulation import Simulation
from tests.support.virtual_time import run as in_virtual_time

NODE = "5a1c1a52-5f39-4f5c-8a36-3d5f5e5b0001"
INSTANCE = "d5327bd6-f3a2-45b3-8d0c-d57e979fed4c"
OTHER = "42a0f50b-b264-44be-aeca-b3572c45c250"
NOW = 1_795_160_227.5


def line(sent_notification: SentNotification) -> str:
    """Return a text like `provision_set.start: cleaning > available, power off, maintenance, instance`."""
    node = sent_notification.shown or sent_notification.node
    words = [f"{sent_notification.action}.{sent_notification.phase}: {node.provision_state}"]
    if node.target_provision_state:
        words[0] += f" > {node.target_provision_state}"
    words.append(str(node.power_state))
    words += ["maintenance"] * node.maintenance + ["instance"] * bool(node.instance_uuid)
    return ", ".join(words)


class SimIronicPlayer:
    def __init__(self, plan: SimPlan, *nodes: SimNode) -> None:
        loop = asyncio.get_running_loop()
        self.sent: list[str] = []
        self.events: list[SentNotification] = []
        clock = Clock(lambda: NOW + loop.time(), random.Random(1), loop.time)
        self.conductor = Conductor(plan, clock, self._handle)
        self.api = Api(self.conductor)
        self.conductor.enroll(nodes)

    @property
    def node(self) -> SimNode:
        return self.conductor.nodes[NODE]

    def _handle(self, notification: SentNotification) -> None:
        self.events.append(notification)
        self.sent.append(line(notification))

    async def act(self, words: str) -> None:
        """Execute an action such as `provision active`, `claim`, `fail clean` or `wait 30`."""
        verb, _, rest = words.partition(" ")
        match verb:
            case "provision":
                await self.api.set_provision_state(NODE, rest, "req-1")
            case "power":
                await self.api.set_power_state(NODE, rest, "req-1")
            case "claim":
                patch = [{"op": "add", "path": "/instance_uuid", "value": rest or INSTANCE}]
                await self.api.patch(NODE, patch, "req-1")
            case "set":
                field, _, value = rest.partition(" ")
                operation = {"op": "add", "path": f"/{field}", "value": None if value == "null" else value}
                await self.api.patch(NODE, [operation], "req-1")
            case "maintenance":
                await self.api.set_maintenance(NODE, rest == "on", "a reason", "req-1")
            case "fail":
                self.node.driver_info = {f"berth_{rest}": "fail"} if rest else {}
            case "wait":
                await asyncio.sleep(float(rest))
            case "soon":  # in parallel with the next actions
                self._group.create_task(self.attempt(rest))
                await asyncio.sleep(0)
            case _:
                raise AssertionError(words)

    async def attempt(self, words: str) -> None:
        try:
            await self.act(words)
        except ApiRefusal as refused:
            self.sent.append(f"refused: {refused.status}")

    async def play(self, acts: Sequence[str], idle: float) -> None:
        """Execute actions, each followed by `idle` seconds; record refusals as lines."""
        async with asyncio.TaskGroup() as self._group:
            self.conductor.tasks = self._group
            for words in acts:
                await self.attempt(words)
                await asyncio.sleep(idle)


def a_node(**fields: Any) -> SimNode:
    free = {"provision_state": "available", "power_state": "power off", "resource_class": "baremetal"}
    return SimNode(uuid=NODE, name="metal1", **{**free, "created_at": NOW, **fields})


def play(acts: str, *, plan: SimPlan | None = None, idle: float = 1.0, **fields: Any) -> SimIronicPlayer:
    """Execute the actions in the lines of a text on one node, in virtual time; return the player."""

    async def story() -> SimIronicPlayer:
        player = SimIronicPlayer(plan or SimPlan(), a_node(**fields))
        await player.play([words.strip() for words in acts.strip().splitlines()], idle)
        return player

    return in_virtual_time(story())


@asynccontextmanager
async def a_served_ironic() -> AsyncIterator[Simulation]:
    nodes = enrolled(5, now=Clock().now())
    nodes[1].maintenance, nodes[1].maintenance_reason = True, "a fan"
    nodes[2].provision_state, nodes[2].last_error = "clean failed", "no disk"
    nodes[3].provision_state = "manageable"
    simulation = Simulation(nodes, listener=listen("127.0.0.1:0"))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(simulation.run())
        try:
            yield simulation
        finally:
            running.cancel()
