"""Publishes the changes of simulated Ironic nodes on berth's bus, for tests without RabbitMQ."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from bus.clock import Backoff, Clock
from bus.errors import Unavailable, Unroutable
from bus.ironic import NodeChanged
from compute_sim.ironic.node import SimNode
from compute_sim.ironic.notifications import FROM_API, SentNotification

log = logging.getLogger(__name__)

_SAME = ("resource_class", "provision_state", "power_state", "maintenance", "instance_uuid", "traits")


@dataclass(eq=False, repr=False)
class BusNotifier:
    """Publishes changes of simulated Ironic nodes on berth's bus, but not API calls that request changes."""

    publish: Callable[..., Awaitable[None]]
    whose: Callable[[SimNode], tuple[str, str, str]]  # the cell, agent and zone of a node
    clock: Clock = field(default_factory=Clock)
    _last: int = 0  # microseconds
    _changes: asyncio.Queue[NodeChanged] = field(default_factory=asyncio.Queue)

    def __call__(self, notification: SentNotification) -> None:
        if notification.action not in FROM_API or notification.phase == "end":
            self._changes.put_nowait(self._changed(notification.node, notification.action))

    def introduce(self, nodes: Iterable[SimNode]) -> None:
        """Publish all given nodes on berth's bus, because berth cannot read them without the REST API."""
        for node in nodes:
            self._changes.put_nowait(self._changed(node, "create"))

    async def run(self) -> None:
        backoff = Backoff(self.clock)
        while True:
            change = await self._changes.get()
            while True:
                try:
                    await self.publish(change)
                except (Unavailable, Unroutable) as problem:  # ironic_sync may not be running yet
                    log.info("%s; %d node events wait", problem, self._changes.qsize())
                    await backoff.pause()
                else:
                    backoff = Backoff(self.clock)
                    break

    def _changed(self, node: SimNode, event: str) -> NodeChanged:
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
            **same,
        )
