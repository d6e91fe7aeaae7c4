"""Combines a simulated Ironic from conductor, notifications, REST API and background traffic."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from starlette.applications import Starlette

from bus.clock import Clock
from bus.http import serve, url_of
from compute_sim.ironic.api import Api
from compute_sim.ironic.conductor import Conductor, SimPlan
from compute_sim.ironic.node import SimNode
from compute_sim.ironic.notifications import NotificationSink, SentNotification
from compute_sim.ironic.patching import ApiRefusal
from compute_sim.ironic.rest import rest_app


class Simulation:
    """A simulated Ironic, which works while `run` is awaited; `sink`, if given, sends its notifications."""

    def __init__(
        self,
        nodes: Sequence[SimNode],
        *,
        plan: SimPlan | None = None,
        sink: NotificationSink | None = None,
        clock: Clock | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self._sink = sink
        self._listener = listener
        self.sent = 0  # number of notifications
        self.conductor = Conductor(plan, clock, self._handle)
        self.conductor.enroll(nodes)
        self.app: Starlette = rest_app(self.conductor)

    @property
    def url(self) -> str:
        """Return the address of the simulated Ironic's REST API, or "" without a REST API."""
        return "" if self._listener is None else url_of(self._listener)

    async def run(self) -> None:
        """Carry out operations, send notifications and serve the REST API until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            self.conductor.tasks = group
            if self._sink is not None:
                group.create_task(self._sink.run())
            if self.conductor.plan.churn:
                group.create_task(Churn(self.conductor, lambda: self.sent).run())
            if self._listener is not None:
                group.create_task(serve(self.app, self._listener))
            await asyncio.Event().wait()

    def _handle(self, notification: SentNotification) -> None:
        self.sent += 1
        if self._sink is not None:
            self._sink(notification)


_PERIOD = 0.02  # seconds between checks of the rate
_TRIES = 20  # nodes checked to find a free one
_MOST = 0.1  # maximum share of the nodes in maintenance, and of deployed nodes
_REQUEST = "req-churn"


@dataclass(eq=False, repr=False)
class Churn:
    """Background traffic: deploys and repairs nodes and switches their power. `sent` returns the number of
    notifications so far.
    """

    conductor: Conductor
    sent: Callable[[], int]
    _mended: list[str] = field(default_factory=list)
    _deployed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._api = Api(self.conductor)
        self._rate = self.conductor.plan.churn
        self._chance = Random(self.conductor.plan.seed)

    async def run(self) -> None:
        """Change random nodes at the wanted rate of notifications, until cancelled."""
        loop = asyncio.get_running_loop()
        began, before = loop.time(), self.sent()
        while True:
            while self.sent() - before < self._rate * (loop.time() - began):
                if not await self._change_random_node():
                    began, before = loop.time(), self.sent()  # do not send missed notifications later
                    break
            await asyncio.sleep(_PERIOD)

    async def _change_random_node(self) -> bool:
        """Change a random node in a random way; return False if no node permits a change."""
        if not (pool := self.conductor.nodes):
            return False
        most = max(1, int(_MOST * len(pool)))
        draw = self._chance.random()
        try:
            if (draw < 0.3 and len(self._mended) >= most) or (0.3 <= draw < 0.4 and self._mended):
                await self._api.set_maintenance(self._pop_random(self._mended), False, None, _REQUEST)
            elif (0.3 <= draw < 0.7 and len(self._deployed) >= most) or (
                0.7 <= draw < 0.8 and self._deployed
            ):
                await self._api.set_provision_state(self._pop_random(self._deployed), "deleted", _REQUEST)
            elif (node := self._free()) is None:
                return False
            elif draw < 0.3:
                self._mended.append(node.uuid)
                await self._api.set_maintenance(node.uuid, True, "a disk is replaced", _REQUEST)
            elif draw < 0.7:
                await self._deploy(node)
            elif draw < 0.9:
                target = "power off" if node.power_state == "power on" else "power on"
                await self._api.set_power_state(node.uuid, target, _REQUEST)
            else:
                await self._api.set_provision_state(node.uuid, "manage", _REQUEST)
                await self._api.set_provision_state(node.uuid, "provide", _REQUEST)
        except ApiRefusal:
            pass  # another request was faster
        return True

    def _free(self) -> SimNode | None:
        nodes = self.conductor.nodes
        start = self._chance.randrange(len(nodes))
        for node in islice(nodes.values(), start, start + _TRIES):
            available = node.provision_state == "available" and not node.maintenance
            if available and node.instance_uuid is None and node.reservation is None:
                return node
        return None

    async def _deploy(self, node: SimNode) -> None:
        patch = [{"op": "add", "path": "/instance_uuid", "value": self.conductor.clock.uuid()}]
        await self._api.patch(node.uuid, patch, _REQUEST)
        self._deployed.append(node.uuid)
        await self._api.set_provision_state(node.uuid, "active", _REQUEST)

    def _pop_random(self, uuids: list[str]) -> str:
        index = self._chance.randrange(len(uuids))
        uuids[index], uuids[-1] = uuids[-1], uuids[index]
        return uuids.pop()
