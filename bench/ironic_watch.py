"""Watches Ironic's notifications and placement's changes, for the benchmark `bench.ironic`."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from bench.ironic_site import Site
from bench.processes import processor_time
from bus import topics
from bus.clock import Clock, monotonic
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from ironic_sync.core.node import ReceivedNotification, opened
from ironic_sync.core.rule import reserved
from ironic_sync.notifications import Notifications
from placement_worker.core.trees import Tree, unpacked

PATIENCE = 120.0  # seconds, for each stage of the benchmark

now = Clock().now


class Watch:
    """Receives Ironic's notifications and placement's changes, and measures the time between them."""

    def __init__(self, site: Site, bus: Bus, roles: dict[int, str]) -> None:
        self.site = site
        self.roles = roles
        self.bus = bus
        self.ask = bus.asker(topics.FIND_CANDIDATES)
        self.received = 0
        self.delays: list[float] = []
        self.opened: dict[str, float] = {}  # node → time of the last notification that it is available
        self._closed: set[str] = set()
        self._opening: dict[str, float] = {}
        self._polled: set[str] = set()

    async def ironic(self) -> None:
        async def handle(bodies: Sequence[bytes]) -> None:
            for received in map(opened, bodies):
                self.received += 1
                if isinstance(received, ReceivedNotification) and received.node is not None:
                    self._handle(received)

        await Notifications(self.site.amqp_url, queue="bench.watch", quorum=False).run(handle, lambda: None)

    def _handle(self, received: ReceivedNotification) -> None:
        assert received.node is not None
        if received.event in ("update", "maintenance_set", "create", "delete") and received.phase != "end":
            return
        if reserved(received.node):
            self._closed.add(received.uuid)
            self._opening.pop(received.uuid, None)
        elif received.uuid in self._closed:
            self._closed.discard(received.uuid)
            self._opening[received.uuid] = self.opened[received.uuid] = received.at

    async def placement(self, group: asyncio.TaskGroup) -> None:
        changes = await self.bus.listen(topics.PLACEMENT_CHANGED.at())
        while True:
            message = await changes.get()
            trees = unpacked(message.trees) if message.trees is not None else ()
            open_now = {tree.root for tree, _ in trees if _open(tree)}
            for root in {change.root for change in message.changes if change.reshaped} & self._opening.keys():
                if root in open_now:
                    self.delays.append(now() - self._opening.pop(root))
                elif message.trees is None and root not in self._polled:
                    self._polled.add(root)
                    group.create_task(self._poll(root))

    async def _poll(self, root: str) -> None:
        """Query placement until the node is a candidate, or until Ironic has made it unavailable."""
        while (at := self._opening.get(root)) is not None:
            group = ResourceGroup(resources={"CUSTOM_BAREMETAL": 1}, in_tree=root)
            if (await self.ask(FindCandidates(groups=(group,), limit=1))).candidates:
                if self._opening.pop(root, None) == at:
                    self.delays.append(now() - at)
                break
            await asyncio.sleep(0.001)
        self._polled.discard(root)

    async def fitting(self, resource_class: str = "CUSTOM_BAREMETAL") -> int:
        """Return how many nodes can be claimed now, or -1 if placement does not answer."""
        question = FindCandidates(groups=(ResourceGroup(resources={resource_class: 1}),), limit=1)
        try:
            return (await self.ask(question)).fitting
        except Unavailable:
            return -1

    def spending(self) -> Callable[[], str]:
        """Return a function that describes the processor time of the six busiest processes from now on."""
        before = processor_time()

        def spent() -> str:
            used: dict[str, float] = defaultdict(float)
            for process, ended in processor_time().items():
                used[self.roles.get(process[0], process[1])] += ended - before.get(process, 0.0)
            most = sorted(used.items(), key=lambda one: one[1], reverse=True)[:6]
            return f"processor seconds: {', '.join(f'{name} {took:.1f}' for name, took in most)}"

        return spent

    async def until(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = monotonic() + PATIENCE
        while not await true():
            if monotonic() > deadline:
                sys.exit(f"not within {PATIENCE:.0f} s: {what}; {await self.fitting()} nodes are open")
            await asyncio.sleep(0.02)


def _open(tree: Tree) -> bool:
    return any(
        inventory.total > inventory.reserved
        for provider in tree.providers
        for inventory in provider.inventories.values()
    )
