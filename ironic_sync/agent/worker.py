"""The worker of the bare-metal agent: builds on Ironic's nodes, and sends heartbeats for them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bus.agent_builds import AgentBuilds, report
from bus.clock import Clock, ReportSequence
from bus.messages import AgentReported, HostReported
from bus.reports import HostState
from bus.topics import AGENT_BUILD, AGENT_DESTROY, AGENT_REPORT, HOST_REPORTED
from bus.vocabulary import portions
from bus.worker import Worker, every, on
from ironic_sync.agent.orders import LONGEST_PAUSE, RunningOrders
from ironic_sync.agent.right import NodeRight
from ironic_sync.api import IronicApi
from ironic_sync.core.node import ReceivedNotification, opened
from ironic_sync.notifications import Notifications

log = logging.getLogger(__name__)

LONGEST_PAUSE_WITH_NOTIFICATIONS = 60.0
HOSTS_IN_A_REPORT = 500
RIGHT_SECONDS = 3.0  # how long a heartbeat waits until the agent may act
RIGHT_CHECKS = 30  # how often it checks meanwhile

_NOBODY = "00000000-0000-0000-0000-000000000000"

OnNode = Callable[[str], None]
# an async function that never ends, and calls its argument with the node's uuid of each notification
NotificationSource = Callable[[OnNode], Coroutine[Any, Any, None]]


def notification_source(notifications: Notifications) -> NotificationSource:
    """Return a NotificationSource that reads this consumer of Ironic's notifications."""

    async def follow(on_node: OnNode) -> None:
        async def handle(bodies: Sequence[bytes]) -> None:
            for notification in map(opened, bodies):
                if isinstance(notification, ReceivedNotification):
                    on_node(notification.uuid)

        await notifications.run(handle, lambda: None)

    return follow


@dataclass(eq=False, repr=False)
class _Heartbeats:
    agent: str  # the pool of agents
    cell: str
    orders: RunningOrders
    period: float
    patience: float

    def __post_init__(self) -> None:
        self._run = self.orders.clock.uuid()
        self._sequence = ReportSequence(self.orders.clock)
        self._reported: dict[str, str] = {}  # nodes that the last heartbeat reported as building

    async def beat(self) -> Sequence[HostReported]:
        """Return the pool's heartbeat, with the nodes being built; [] if the agent may not act. Raise an
        error if Ironic is unreachable, so that no heartbeat is sent.
        """
        if not await self._may_act():
            return []
        await self.orders.api.node(_NOBODY, ("uuid",))
        building = Counter(job.order.root for job in self.orders.building())
        names = {job.order.root: job.order.host for job in self.orders.building()}
        states = [
            HostState(
                root=root,
                host=host,
                building=building[root],
                load=float(building[root]),
                instances=building[root],
                hypervisor="ironic",
                hypervisor_version=1,
                vm_modes=("hvm",),
                driver="ironic",
            )
            for root, host in (self._reported | names).items()
        ]
        self._reported = names
        sequence = self._sequence.next()
        head: dict[str, Any] = {"cell": self.cell, "agent": self.agent, "run": self._run}
        return [
            HostReported(**head, sequence=sequence, period=self.period, partial=True, hosts=hosts)
            for hosts in [*portions(states, HOSTS_IN_A_REPORT)] or [()]
        ]

    async def _may_act(self) -> bool:
        """Return whether the agent may act on nodes; wait a few seconds if not."""
        for _ in range(RIGHT_CHECKS):
            if self.orders.right.good():
                return True
            await asyncio.sleep(RIGHT_SECONDS / RIGHT_CHECKS)
        return self.orders.right.good()

    async def progress(self) -> Sequence[AgentReported]:
        """Return a progress report for each running build, unless its node is in one state for too long."""
        since = self.orders.clock.monotonic() - self.patience
        return [report(job.order, "progress") for job in self.orders.building() if job.changed > since]


def metal_agent(
    agent: str,
    cell: str,
    api: IronicApi,
    right: NodeRight,
    *,
    pool: str = "",
    notifications: NotificationSource | None = None,
    period: float = 10.0,
    progress_every: float = 30.0,
    patience: float = 3600.0,  # seconds of a node in one state, after which no progress is reported
    maintenance_patience: float = 300.0,  # seconds of a node in maintenance, after which its build fails
    concurrency: int = 5000,
    clock: Clock | None = None,
) -> Worker:
    """Return the worker of an agent that builds instances on the Ironic nodes of its pool, as far as `right`
    permits. `pool`: the name of the pool, which its heartbeats have; by default that of the agent.
    """
    orders = RunningOrders(
        agent,
        api,
        LONGEST_PAUSE if notifications is None else LONGEST_PAUSE_WITH_NOTIFICATIONS,
        maintenance_patience,
        clock or Clock(),
        AgentBuilds(),
        right,
    )
    tidings = _Heartbeats(pool or agent, cell, orders, period, patience)
    follow = [] if notifications is None else [partial(notifications, orders.check_node)]
    address = {"cell": cell, "agent": agent}
    worker = Worker(
        f"agent.{cell}.{agent}",
        consumes=[
            on(AGENT_BUILD.at(**address), orders.build, emits=[AGENT_REPORT], concurrency=concurrency),
            on(AGENT_DESTROY.at(**address), orders.destroy, emits=[AGENT_REPORT], concurrency=concurrency),
        ],
        timers=[
            every(period, tidings.beat, emits=[HOST_REPORTED], at_once=True),
            every(progress_every, tidings.progress, emits=[AGENT_REPORT]),
        ],
        starts=[api.open],
        runs=follow,
        stops=[api.close],
    )
    return worker.with_rows([right.rows(orders.check_all)])
