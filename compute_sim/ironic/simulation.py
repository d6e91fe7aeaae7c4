"""Combines a simulated Ironic from conductor, power, notifications, REST API and background traffic."""

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
from compute_sim.ironic.conductor import Conductor, Notification, SimPlan
from compute_sim.ironic.envelope import SentNotification
from compute_sim.ironic.node import SimNode
from compute_sim.ironic.notify import NotificationSink
from compute_sim.ironic.patching import ApiRefusal
from compute_sim.ironic.power import Power
from compute_sim.ironic.rest import rest_app
from compute_sim.ironic.transitions import Works


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
        login: tuple[str, str] = ("", ""),  # user and password that requests need
    ) -> None:
        self._notify = sink
        self._listener = listener
        self.sent = 0  # number of notifications
        self.conductor = Conductor(plan, clock, self._handle)
        if sink is not None:
            self.conductor.wait_for_space = sink.wait_for_space
        self.works = Works(self.conductor)
        self.power = Power(self.conductor)
        self.conductor.enroll(nodes)
        self.app: Starlette = rest_app(self.conductor, self.works, self.power, login)

    @property
    def url(self) -> str:
        """Return the address of the simulated Ironic's REST API, or "" without a REST API."""
        return "" if self._listener is None else url_of(self._listener)

    async def run(self) -> None:
        self.power.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.conductor.run())
            if self._notify is not None:
                group.create_task(self._notify.run())
            if self.conductor.plan.churn:
                api = Api(self.conductor, self.works, self.power)
                group.create_task(Churn(self.conductor, api, lambda: self.sent).run())
            if self._listener is not None:
                group.create_task(serve(self.app, self._listener))

    def _handle(self, notification: Notification) -> None:
        if not (isinstance(notification, SentNotification) and notification.silent):
            self.sent += 1
        if self._notify is not None:
            self._notify(notification)


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
    api: Api
    sent: Callable[[], int]
    _mended: list[str] = field(default_factory=list)
    _deployed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rate = self.conductor.plan.churn
        self._chance = Random(self.conductor.plan.seed)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began, before = loop.time(), self.sent()
        while True:
            while self.sent() - before < self._rate * (loop.time() - began):
                if not await self._change_random_node():
                    began, before = loop.time(), self.sent()  # do not send missed notifications later
                    break
            await asyncio.sleep(_PERIOD)

    async def _change_random_node(self) -> bool:
        """Change a random Ironic node in a random way; return False if no node permits a change."""
        if not (pool := self.conductor.nodes):
            return False
        most = max(1, int(_MOST * len(pool)))
        draw = self._chance.random()
        try:
            if (draw < 0.3 and len(self._mended) >= most) or (0.3 <= draw < 0.4 and self._mended):
                await self.api.maintain(self._pop_random(self._mended), False, None, _REQUEST)
            elif (0.3 <= draw < 0.7 and len(self._deployed) >= most) or (
                0.7 <= draw < 0.8 and self._deployed
            ):
                await self.api.provision(self._pop_random(self._deployed), "deleted", {}, _REQUEST)
            elif (node := self._free()) is None:
                return False
            elif draw < 0.3:
                self._mended.append(node.uuid)
                await self.api.maintain(node.uuid, True, "a disk is replaced", _REQUEST)
            elif draw < 0.7:
                await self._deploy(node)
            elif draw < 0.9:
                target = "power off" if node.power_state == "power on" else "power on"
                await self.api.power(node.uuid, target, _REQUEST)
            else:
                await self.api.provision(node.uuid, "manage", {}, _REQUEST)
                await self.api.provision(node.uuid, "provide", {}, _REQUEST)
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
        instance = self.conductor.clock.uuid()
        patch = [{"op": "add", "path": "/instance_uuid", "value": instance}]
        await self.api.patch(node.uuid, patch, _REQUEST)
        self._deployed.append(node.uuid)
        await self.api.provision(node.uuid, "active", {}, _REQUEST)

    def _pop_random(self, uuids: list[str]) -> str:
        index = self._chance.randrange(len(uuids))
        uuids[index], uuids[-1] = uuids[-1], uuids[index]
        return uuids.pop()
