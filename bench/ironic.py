"""Measures the time from Ironic's event to a claimable node, at a steady rate of events.

A simulated Ironic sends notifications to RabbitMQ; it and each worker of berth are processes. ironic_sync
confirms available nodes by a read. A node is claimable when placement has published the node's free inventory
to schedulers. The time starts at the timestamp in Ironic's event.
"""

import asyncio
import subprocess
from collections.abc import Sequence

import uvloop

from bench.loading import BenchBerth, NotClean, berth_on, berth_up, check_clean
from bench.own_servers import broker_and_database, own_directory, running
from berth import composition
from berth.loadtest import Load, LoadPlan
from bus import topics
from bus.clock import Clock, monotonic
from bus.delivery.runner import Bus
from bus.queries import FindCandidates
from bus.replication import FindTrees
from bus.requests import ResourceGroup
from deploy.servers import free_port
from ironic_sync.core.node import ReceivedNotification, opened
from ironic_sync.core.rule import reserved
from ironic_sync.notifications import Notifications
from placement_worker.core.trees import Tree, unpacked

_PATIENCE = 120.0  # seconds until most nodes must be known
_KNOWN = 0.7  # share of the nodes; events make up to a fifth of them unavailable
_SETTLES = 5.0  # seconds until the first sweep has ended
_CHANGES = ("update", "maintenance_set", "create", "delete")  # have happened at their end

_now = Clock().now


class _Watch:
    """Receives Ironic's notifications and placement's changes, and measures the time between them."""

    def __init__(self) -> None:
        self.delays: list[float] = []  # milliseconds
        self._closed: set[str] = set()
        self._opening: dict[str, float] = {}  # node → time of the notification that it is available

    async def ironic(self, amqp_url: str) -> None:
        async def handle(bodies: Sequence[bytes]) -> None:
            for received in map(opened, bodies):
                if isinstance(received, ReceivedNotification):
                    self._handle(received)

        await Notifications(amqp_url, queue="bench.watch", quorum=False).run(handle, lambda: None)

    def _handle(self, received: ReceivedNotification) -> None:
        if received.node is None or (received.event in _CHANGES and received.phase != "end"):
            return
        if reserved(received.node):
            self._closed.add(received.uuid)
            self._opening.pop(received.uuid, None)
        elif received.uuid in self._closed:
            self._closed.discard(received.uuid)
            self._opening[received.uuid] = received.at

    async def placement(self, bus: Bus) -> None:
        changes, ask = await bus.listen(topics.PLACEMENT_CHANGED.at()), bus.asker(topics.TREES)
        while True:
            message = await changes.get()
            changed = {change.root for change in message.changes if change.reshaped} & self._opening.keys()
            if not changed:
                continue
            trees = message.trees  # None: too many for the message
            for tree, _ in unpacked(trees or await ask(FindTrees(roots=tuple(changed)))):
                if _open(tree) and (at := self._opening.pop(tree.root, None)) is not None:
                    self.delays.append(1000 * (_now() - at))


def _open(tree: Tree) -> bool:
    return any(
        inventory.total > inventory.reserved
        for provider in tree.providers
        for inventory in provider.inventories.values()
    )


def delays(nodes: int, rate: float, seconds: float, boots: float = 0.0, hosts: int = 1) -> list[float]:
    """Return the milliseconds from each event to the claimable node, at `rate` events per second, while
    `boots` virtual machines per second are built on `hosts` hosts.
    """
    http = f"127.0.0.1:{free_port()}"
    events = ("--nodes", str(nodes), "--churn", str(rate), "--step-time", "constant:0", "--http", http)
    with broker_and_database() as (amqp_url, database_url), own_directory() as state:
        berth = berth_on(
            amqp_url, database_url, hosts, 1, state_dir=state,
            ironic_amqp_url=amqp_url, ironic_api=f"http://{http}",
        )  # fmt: skip
        quiet = {"env": berth.environment, "stdout": subprocess.DEVNULL}
        with running("berth", "ironic", "sim", *events, **quiet), berth_up(berth.environment, hosts):
            found = uvloop.run(_measured(berth, amqp_url, nodes, seconds, boots))
            berth.judge()
    if not found:
        raise NotClean("no node became available")
    return found


async def _measured(
    berth: BenchBerth, amqp_url: str, nodes: int, seconds: float, boots: float
) -> list[float]:
    watch = _Watch()
    async with Bus(composition.transport(berth.settings, "bench")) as bus, asyncio.TaskGroup() as group:
        watching = [group.create_task(watch.ironic(amqp_url)), group.create_task(watch.placement(bus))]
        await _most_known(bus, nodes)
        load = Load(bus, LoadPlan(boots=int(boots * (_SETTLES + seconds)), rate=boots))
        loading = group.create_task(load.run()) if boots else None
        await asyncio.sleep(_SETTLES)
        watch.delays.clear()
        await asyncio.sleep(seconds)
        found = watch.delays.copy()
        if loading is not None:
            check_clean(await loading)
        for task in watching:
            task.cancel()
    return found


async def _most_known(bus: Bus, nodes: int) -> None:
    """Wait until most of the nodes can be claimed."""
    ask, until = bus.asker(topics.FIND_CANDIDATES), monotonic() + _PATIENCE
    query = FindCandidates(groups=(ResourceGroup(resources={"CUSTOM_BAREMETAL": 1}),), limit=1)
    while (known := (await ask(query)).fitting) < _KNOWN * nodes:
        if monotonic() > until:
            raise NotClean(f"only {known} of {nodes} nodes can be claimed")
        await asyncio.sleep(0.02)
