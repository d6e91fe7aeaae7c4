"""A real Ironic, and a berth on RabbitMQ and PostgreSQL that follows it and deploys on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from berth.features import packages
from berth.operations.audit import placement_breaches
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus, Listener
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import FindCandidates
from bus.rabbit import RabbitTransport
from bus.requests import Flavor, ResourceGroup
from bus.resources import FindAllocations, FindProviders, Provider
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from deploy.ironic import IronicServer
from ironic_sync.agent.right import NodeRight
from ironic_sync.agent.worker import metal_agent, notification_source
from ironic_sync.api import IronicApi, IronicRefused
from ironic_sync.core.selection import NodeSelection
from ironic_sync.notifications import Notifications
from ironic_sync.openstack import Access
from ironic_sync.worker import FollowedIronic as Followed
from ironic_sync.worker import ironic_sync
from tests.support.cloud_workers import a_scheduler_apart, of_one_cell

T = TypeVar("T")

CELL = "c1"
AGENT = f"{CELL}-metal"
SOON = 10.0  # seconds for what takes milliseconds, on a machine that does much else
CLOSED, OPEN = 1, 0


class OperatedIronic(IronicApi):
    """A client that also makes the requests of an operator which berth itself never makes."""

    async def create_node(self, **node: Any) -> dict[str, Any]:
        return await self._do("POST", "/v1/nodes", node)

    async def delete_node(self, uuid: str) -> None:
        await self._do("DELETE", f"/v1/nodes/{uuid}")

    async def set_traits(self, uuid: str, traits: Sequence[str]) -> None:
        await self._do("PUT", f"/v1/nodes/{uuid}/traits", {"traits": list(traits)})


class IronicCloud:
    def __init__(self, ironic: IronicServer, amqp_url: str, database_url: str, name: str, kind: str) -> None:
        self.ironic = ironic
        self.kind = kind
        self.clock = Clock()
        self.api = OperatedIronic(Access(url=ironic.url), self.clock)
        self.nodes: list[str] = []
        self._amqp_url = amqp_url
        self._apis: dict[str, IronicApi] = {}
        self._name = name
        self._placement_db = Database(database_url, namespace="placement")
        self._cell_db = Database(database_url, namespace=f"cell_{CELL}")
        self._lives: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.bus: Bus
        self._group: asyncio.TaskGroup
        self._ended: Listener[BuildEnded]
        self._lost: Listener[BuildUnplaceable]

    @property
    def resource_class(self) -> str:
        return f"CUSTOM_{self.kind.upper()}"

    # Its workers

    def _factories(self) -> dict[str, Callable[[Bus], Worker | tuple[Worker, Worker]]]:
        return {
            **of_one_cell(self._placement_db, CELL, self._cell_db, self.clock),
            "scheduler": lambda bus: a_scheduler_apart(bus, self.clock),
            "ironic_sync": lambda bus: ironic_sync(
                Followed(
                    selection=NodeSelection(cell=CELL),
                    notifications=Notifications(self._amqp_url, queue=f"{self._name}.sync", quorum=False),
                    api=self._api_for("ironic_sync"),
                    sweep_seconds=self.sweep_seconds,
                ),
                bus.publish,
                bus.asker(topics.PROVIDERS),
                clock=self.clock,
            ),
            "agent": lambda bus: metal_agent(
                AGENT,
                CELL,
                self._api_for("agent"),
                NodeRight(),
                notifications=notification_source(
                    Notifications(self._amqp_url, queue=f"{self._name}.agent", quorum=False)
                ),
                period=1.0,
                maintenance_patience=3.0,
                clock=self.clock,
            ),
        }

    def _api_for(self, worker: str) -> IronicApi:
        self._apis[worker] = IronicApi(Access(url=self.ironic.url), self.clock)
        return self._apis[worker]

    sweep_seconds = 3600.0  # what is seen is seen by events

    def start(self, name: str) -> None:
        stopping = asyncio.Event()

        async def live() -> None:
            way = RabbitTransport(self._amqp_url, exchange=self._name, quorum=False, name=name)
            async with Bus(way, self.clock) as bus:
                made = self._factories()[name](bus)
                async with asyncio.TaskGroup() as group:
                    for worker in made if isinstance(made, tuple) else (made,):
                        group.create_task(bus.serve(worker, stopping))

        self._lives[name] = self._group.create_task(live()), stopping

    async def kill(self, name: str) -> None:
        task, _ = self._lives.pop(name)
        task.cancel()
        await asyncio.wait([task])
        if name in self._apis:
            await self._apis.pop(name).close()

    async def close(self) -> None:
        for _, stopping in self._lives.values():
            stopping.set()
        await asyncio.wait([task for task, _ in self._lives.values()])

    # Ironic's side

    async def node(self, uuid: str) -> dict[str, Any]:
        found = await self.api.node(uuid)
        assert found is not None, f"{uuid} is gone"
        return found

    async def create(self, **more: Any) -> str:
        made = await self.api.create_node(driver="fake-hardware", resource_class=self.kind, **more)
        self.nodes.append(made["uuid"])
        return str(made["uuid"])

    async def provided(self, **more: Any) -> str:
        """A node that is available, and known to be."""
        uuid = await self.create(**more)
        await self.move(uuid, "manage", "manageable")
        await self.move(uuid, "provide", "available")
        await self.follows(uuid, OPEN)
        return uuid

    async def move(self, uuid: str, target: str, state: str) -> None:
        await self.patiently(self.api.set_provision_state, uuid, target)
        await self.reaches(uuid, state)

    async def is_so(self, uuid: str, **fields: Any) -> bool:
        node = await self.node(uuid)
        return all(node[name] == value for name, value in fields.items())

    async def reaches(self, uuid: str, state: str, *, unlocked: bool = True) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            node = await self.node(uuid)
            done = node["provision_state"] == state and not (unlocked and node["reservation"])
            return node if done else None

        return await self.until(there, f"{uuid} is {state}")

    async def change(self, uuid: str, **fields: Any) -> None:
        await self.patiently(
            self.api.patch_node,
            uuid,
            [
                {"op": "remove", "path": f"/{name.replace('__', '/')}"}
                if value is None
                else {"op": "add", "path": f"/{name.replace('__', '/')}", "value": value}
                for name, value in fields.items()
            ],
        )

    async def patiently(self, call: Callable[..., Awaitable[Any]], *args: Any) -> None:
        async def done() -> bool:
            try:
                await call(*args)
            except IronicRefused as refused:
                if refused.status != 409 or not any(
                    word in refused.text for word in ("locked", "in progress")
                ):
                    raise
                return False
            return True

        await self.until(done, f"{args} is done")

    async def delete(self, uuid: str) -> None:
        await self.patiently(self.api.delete_node, uuid)
        self.nodes.remove(uuid)

    async def remove(self, uuid: str) -> None:
        """Whatever it is in the midst of: nodes in maintenance may always be deleted."""
        if await self.api.node(uuid) is not None:
            await self.patiently(self.api.set_maintenance, uuid, True)
            await self.patiently(self.api.delete_node, uuid)

    # Placement's side

    async def provider(self, uuid: str) -> Provider | None:
        found = (await self.bus.asker(topics.PROVIDERS)(FindProviders(ids=(uuid,)))).providers
        return found[0] if found else None

    async def has_class(self, uuid: str, resource_class: str) -> bool:
        one = await self.provider(uuid)
        return one is not None and resource_class in one.inventories

    async def gone(self, uuid: str) -> bool:
        return await self.provider(uuid) is None

    async def claimable(self) -> set[str]:
        """The nodes on which a build could be placed now."""
        question = FindCandidates(groups=(ResourceGroup(resources={self.resource_class: 1}),), limit=1000)
        found = await self.bus.asker(topics.FIND_CANDIDATES)(question)
        return {candidate.root for candidate in found.candidates}

    async def held(self) -> dict[str, str]:
        """Consumer → node."""
        ask = self.bus.asker(topics.ALLOCATIONS)
        consumers = (await ask(FindAllocations(providers=tuple(self.nodes)))).consumers
        return {consumer.id: next(iter(consumer.allocations)) for consumer in consumers}

    async def breaches(self) -> list[str]:
        """The audit's findings about placement."""
        return await placement_breaches(self._placement_db)

    async def holds_nothing(self) -> bool:
        return not await self.held()

    async def follows(
        self,
        uuid: str,
        reserved: int,
        *,
        resource_class: str = "",
        traits: Sequence[str] = (),
        seconds: float = SOON,
    ) -> None:
        """Placement comes to have exactly this of the node, and offers it if it is open."""
        klass = resource_class or self.resource_class

        async def so() -> bool:
            one = await self.provider(uuid)
            if one is None:
                return False
            inventory = {name: (it.total, it.reserved) for name, it in one.inventories.items()}
            return inventory == {klass: (1, reserved)} and set(one.traits) == set(traits)

        async def picture() -> str:
            one, node = await self.provider(uuid), await self.node(uuid)
            fields = ("provision_state", "power_state", "maintenance", "instance_uuid", "fault")
            return f"placement: {one}; Ironic: { ({name: node[name] for name in fields}) }"

        await self.until(so, f"{uuid} is {'closed' if reserved else 'open'}", seconds, picture)
        if klass == self.resource_class:
            one = await self.provider(uuid)
            free = one is not None and not reserved and not one.used.get(klass)
            assert (uuid in await self.claimable()) == free

    # A client's side

    async def build(self, flavor: Flavor | None = None) -> str:
        build = self.clock.uuid()
        request = BuildRequested(
            request=self.clock.uuid(), instances=(build,), flavor=flavor or self.flavor, reply_to=self._name
        )
        await self.bus.publish(request)
        return build

    @property
    def flavor(self) -> Flavor:
        return self.flavor_of(self.resource_class)

    @staticmethod
    def flavor_of(resource_class: str) -> Flavor:
        none = {f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
        return Flavor(name="metal", extra_specs={f"resources:{resource_class}": "1", **none})

    async def ended(self, build: str, seconds: float = 30.0) -> BuildEnded:
        while (reply := await self.any_end(seconds)).build != build:
            pass
        return reply

    async def outcomes(self, *builds: str, seconds: float = 60.0) -> list[str]:
        """The status with which each build ended, or "unplaceable"."""
        found: dict[str, str] = {}

        async def note_ends() -> None:
            while True:
                end = await self._ended.get()
                found[end.build] = end.status

        async def note_lost() -> None:
            while True:
                found.update(dict.fromkeys((await self._lost.get()).instances, "unplaceable"))

        async def complete() -> bool:
            return found.keys() >= {*builds}

        noting = [asyncio.create_task(note_ends()), asyncio.create_task(note_lost())]
        await self.until(complete, f"{builds} ended", seconds)
        for task in noting:
            task.cancel()
        return [found[build] for build in builds]

    async def any_end(self, seconds: float = 30.0) -> BuildEnded:
        async with asyncio.timeout(seconds):
            return await self._ended.get()

    async def unplaceable(self, *builds: str, seconds: float = 30.0) -> BuildUnplaceable:
        async with asyncio.timeout(seconds):
            while not set(builds).intersection((message := await self._lost.get()).instances):
                pass
        return message

    async def take_down(self, build: str) -> None:
        await self.bus.publish(BuildDeleteRequested(build=build, cell=CELL))

    async def until(
        self,
        true: Callable[[], Awaitable[T | None]],
        what: str,
        seconds: float = SOON,
        picture: Callable[[], Awaitable[str]] | None = None,
    ) -> T:
        deadline = self.clock.now() + seconds
        while not (found := await true()):
            if self.clock.now() > deadline:
                seen = await picture() if picture is not None else ""
                raise AssertionError(f"not within {seconds} s: {what}\n{seen}")
            await asyncio.sleep(0.01)
        return found

    async def open(self, bus: Bus, group: asyncio.TaskGroup) -> None:
        self.bus, self._group = bus, group
        await migrate(self._placement_db, *packages("placement"))
        await migrate(self._cell_db, *packages("conductor"))
        self._ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=self._name))
        self._lost = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=self._name))
        for name in self._factories():
            self.start(name)


@asynccontextmanager
async def ironic_cloud(
    ironic: IronicServer, amqp_url: str, database_url: str, name: str, kind: str
) -> AsyncIterator[IronicCloud]:
    made = IronicCloud(ironic, amqp_url, database_url, name, kind)
    way = RabbitTransport(amqp_url, exchange=name, quorum=False, name="test")
    async with made.api, Bus(way, made.clock) as bus, asyncio.TaskGroup() as group:
        await made.open(bus, group)
        try:
            yield made
        finally:
            await made.close()
    await made._placement_db.close()
    await made._cell_db.close()
