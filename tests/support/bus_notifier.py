"""Publishes the changes of simulated Ironic nodes on berth's bus, for tests without RabbitMQ."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from bus.clock import Backoff, Clock
from bus.errors import Unavailable, Unroutable
from bus.ironic import NodeChanged
from compute_sim.ironic.conductor import Notification
from compute_sim.ironic.envelope import SentNotification
from compute_sim.ironic.node import SimNode
from compute_sim.ironic.notify import Backlog

log = logging.getLogger(__name__)

_SAME = ("resource_class", "provision_state", "power_state", "maintenance", "instance_uuid", "traits")


@dataclass(eq=False, repr=False)
class BusNotifier:
    """Publishes changes of simulated Ironic nodes on berth's bus, but not API calls that request changes."""

    publish: Callable[..., Awaitable[None]]
    whose: Callable[[SimNode], tuple[str, str, str]]  # the cell, agent and zone of a node
    clock: Clock = field(default_factory=Clock)
    _last: int = 0  # microseconds
    _backlog: Backlog[NodeChanged] = field(default_factory=Backlog)

    def __call__(self, notification: Notification) -> None:
        if isinstance(notification, SentNotification) and not notification.asked:
            self._backlog.put(
                self._changed(notification.node, notification.action, deleted=notification.action == "delete")
            )

    def introduce(self, nodes: Iterable[SimNode]) -> None:
        """Publish all given nodes on berth's bus, because berth cannot read them without the REST API."""
        for node in nodes:
            self._backlog.put(self._changed(node, "create"))

    async def wait_for_space(self) -> None:
        await self._backlog.wait_for_space()

    async def run(self) -> None:
        backoff = Backoff(self.clock)
        while True:
            batch = await self._backlog.batch()
            try:
                await self.publish(*batch)
            except (Unavailable, Unroutable) as problem:  # ironic_sync may not be running yet
                log.info("%s; %d node events wait", problem, len(self._backlog))
                await backoff.pause()
            else:
                backoff = Backoff(self.clock)
                self._backlog.sent(len(batch))

    def _changed(self, node: SimNode, event: str, *, deleted: bool = False) -> NodeChanged:
        self._last = max(self._last + 1, int(self.clock.now() * 1_000_000))
        cell, agent, zone = self.whose(node)
        same = {name: getattr(node, name) for name in _SAME}
        return NodeChanged(
            event=event,
            node=node.uuid,
            at=self._last / 1_000_000,
            name=node.name or "",
            cell=cell,
            agent=agent,
            zone=zone,
            deleted=deleted,
            **same,
        )
