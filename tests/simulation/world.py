"""A small cloud in virtual time: every worker, one seed, and everything that may go wrong.

The real workers run on the in-process bus and on SQLite held in memory, in one thread, with a clock that
jumps. Messages are reordered and duplicated; workers are killed at any await and come back; agents lose
power; hosts fail and hang. After every message that settles the invariants are read off the databases.
"""

import asyncio
import hashlib
import random
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID, uuid5

from bus import topics
from bus.aggregates import AggregateEditRequested
from bus.cells import CellEditRequested, RegisterCell
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.groups import GroupEditRequested
from bus.host_health import DISABLED, FORCED_DOWN
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.local.broker import QueuedItem
from bus.messages import (
    BuildCancelRequested,
    BuildDeleteRequested,
    BuildEnded,
    BuildOrdered,
    BuildRequested,
    BuildUnplaceable,
    NodeChanged,
)
from bus.moves import MoveOrdered
from bus.names import MakeName, NameEditRequested
from bus.relayed_orders import with_shared_queues
from bus.relays import ANSWER_SECONDS
from bus.requests import BuildSpec
from bus.resources import EditRequested, SetTraits
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from cell_conductor import AttemptLimits, agent_gateway, cell_conductor, store
from compute_sim.core.drivers import NumaDriver
from compute_sim.core.faults import CrashPlan, Durations, FaultPlan, MoveFaults, SimOptions
from compute_sim.disk import AgentDisk
from compute_sim.guests import GuestRecord
from compute_sim.machines import Hardware, SimAgent, SimHost, fleet
from compute_sim.worker import compute_sim
from ironic_sync import ironic_sync
from placement_worker import Placement, placement_worker
from scheduler_worker.core.move_start import taken_back
from scheduler_worker.waiting.store import HostChanges
from tests.simulation.invariants import (
    KEPT,
    Broken,
    GuestSeen,
    audited,
    check_always,
    check_at_rest,
    check_builds,
    check_guests,
    check_waiting,
    gone_apart,
)
from tests.simulation.wants import GROUPS, ZONES, Movers, a_request, another_zone, hard_of_hearing
from tests.support.cloud_workers import a_scheduler, changes_of
from tests.support.databases import inline_connection

CELLS = ("c1", "c2")
_START = 1_700_000_000.0
_NAMES = UUID("0b0e8a52-6c3c-4f0b-9d0b-5f2f6d1e7a10")
_GOING_BACK = "SELECT build FROM moves WHERE json_extract(story, '$.goal') IS NOT NULL"
_SAID_LATE = ("agent.", "build.", "move.")
_LONG = 300.0  # virtual seconds after which whatever is still open is lost


@dataclass(frozen=True)
class Trouble:
    reorder: float = 0.2
    duplicate: float = 0.1
    late: float = 0.03
    crashes: int = 6
    reschedule: float = 0.25
    abort: float = 0.05
    hang: float = 0.05
    phases: float = 0.08  # of moves, that fail
    phases_hang: float = 0.03
    waits: float = 0.0  # of moves, that may wait for room


T = TypeVar("T")


@dataclass
class SimulatedWorld:
    seed: int
    trouble: Trouble = field(default_factory=Trouble)
    requests: int = 14
    twins: bool = False  # two placements on one database, two schedulers, two conductors of one cell
    moves: bool = False  # what is there is moved, too
    shared: bool = False  # agents share queues: a gateway for each cell, and with `twins` a second one

    cells = CELLS

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.history: list[str] = []
        self.accepted: dict[str, BuildRequested] = {}
        self.ends: dict[str, tuple[str, str]] = {}
        self.cell_of: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.movers = Movers(self)
        self.off: set[str] = set()
        self.steps = 0
        self._begun = False  # how databases are made is not of it: tests have a shorter way
        self._looked_at: tuple[int | None, ...] = ()
        self.looked_at_waiting = 0  # how often one was seen to wait rightly
        self.crowded = (
            self.seed % 4 == 3 and not self.moves
        )  # more is asked for than there is, and more is deleted
        self.broken: Broken | None = None
        self.deaf = self.seed % 5 == 4
        self.forgetful = (
            self.seed % (9 if self.moves else 3) == 2
        )  # agents that are killed lose their disks, guests and all
        self.lost_disks: set[str] = set()  # agents that have: what they know of guests is nothing
        self.apart: set[int] = set()
        self.beside: dict[tuple[str, int], float] = {}
        self._replicas: dict[str, str] = {}
        self.waiting: dict[str, HostChanges] = {}  # of all schedulers there ever were, by their names
        self._disks: dict[str, _WatchedDisk] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._beside: list[asyncio.Task[None]] = []
        self.evacuating: list[asyncio.Task[None]] = []

    @property
    def digest(self) -> str:
        """Two runs with equal digests went the same way."""
        return hashlib.sha256("\n".join(self.history).encode()).hexdigest()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self.clock = Clock(lambda: _START + loop.time(), self.chance, loop.time)
        chaos = Chaos(random.Random(self.chance.random()), self.trouble.reorder, self.trouble.duplicate)
        self.broker = _Watched(self, chaos)
        self.databases = {
            name: Database("sqlite+aiosqlite://", inline=True, pause=self._pause)
            for name in ("placement", "scheduler", *(f"cell_{cell}" for cell in CELLS))
        }
        await migrate(self.databases["scheduler"], "scheduler_worker")
        await migrate(self.databases["placement"], "placement_worker")
        for cell in CELLS:
            await migrate(self.databases[f"cell_{cell}"], "cell_conductor")
        self._begun = True
        placement = Placement(self.databases["placement"], self.clock)
        for group in GROUPS:
            await placement.server_groups.edit(GroupEditRequested(edit=group))
        # A trait of ours, which no placement has from the beginning
        await placement.classes_and_traits.edit(
            NameEditRequested(kind="trait", edit=MakeName(name=FORCED_DOWN))
        )
        for zone in ZONES:
            await placement.aggregates.edit(AggregateEditRequested(edit=zone))
        try:
            await self._live_through_it()
        finally:
            for database in self.databases.values():
                await database.close()

    async def _live_through_it(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self._factories():
                self._start(name, group)
            self._group = group
            self._telling = group.create_task(self._story(group))
            await asyncio.wait([self._telling])
            for task in (*self._beside, *self.evacuating, *self._lives.values()):
                task.cancel()
        if self.broken is not None:
            raise self.broken
        self._telling.result()
        check_at_rest(self)
        for cell in CELLS:
            async with self.databases[f"cell_{cell}"].read() as tx:
                check_builds(self, await store.load(tx, self.accepted))
        breaches = await audited(self.databases, CELLS, self.clock)
        if breaches := [breach for breach in breaches if not breach.startswith(gone_apart(self))]:
            raise Broken(f"the audit finds {breaches}")

    # What happens

    async def _story(self, group: asyncio.TaskGroup) -> None:
        async with Bus(LocalTransport(self.broker), self.clock) as bus:
            ended = await bus.listen(topics.BUILD_ENDED.at())
            unplaceable = await bus.listen(topics.BUILD_UNPLACEABLE.at())
            moved = await bus.listen(topics.MOVE_ENDED.at())
            refused = await bus.listen(topics.MOVE_REFUSED.at())
            listener = await bus.listen(topics.MOVE_PROGRESS.at())
            crashing = group.create_task(self._crash_now_and_then(group))
            self._beside = [
                group.create_task(self._handle(ended.get, self._ended)),
                group.create_task(self._handle(unplaceable.get, self._unplaceable)),
                group.create_task(self._handle(moved.get, self.movers.hear_ended)),
                group.create_task(self._handle(refused.get, self.movers.hear_refused)),
                group.create_task(self._handle(listener.get, self.movers.hear_told)),
                crashing,
            ]
            await self._ask(bus)
            await crashing
            await self._until(lambda: set(self.ends) == set(self.accepted), "some builds never ended")
            await self._until(lambda: all(one.done() for one in self.evacuating), "an evacuation never ended")
            await self.movers.finish(bus, _LONG)
            await self._until(self._clean, "something was left over")
            await self._until(self._awake, "guests sleep that nobody wakes")
            await self._until(self._quiet, "the bus never came to rest")

    async def _ask(self, bus: Bus) -> None:
        await asyncio.sleep(1.0)
        for number in range(self.requests * (2 if self.crowded else 1)):
            await asyncio.sleep(self.chance.expovariate(2.0))
            request = a_request(self.chance, self.clock.uuid, self.hosts())
            for instance in request.instances:
                self.accepted[instance] = request
            if self.chance.random() < 0.05:  # taken down before it is asked for
                self.deleted.add(request.instances[0])
                await bus.publish(BuildCancelRequested(build=request.instances[0], anywhere=True))
            await bus.publish(request)
            self.note(f"asked {number}: {len(request.instances)} × {request.flavor.name}")
            if self.chance.random() < 0.2:
                await bus.publish(request)  # an impatient client
            if self.chance.random() < 0.3:
                await bus.publish(self._node_event())
            await self._delete_one(bus)
            await self._cancel_one(bus)
            await self._edit_one(bus)
            await self._move_one(bus)
        for _ in range(12 if self.crowded else 3):
            await asyncio.sleep(self.chance.expovariate(0.5))
            await self._delete_one(bus)
            await bus.publish(self.chance.choice(list(self.accepted.values())))  # once more, long after
            await self.movers.ask_again(bus)
        if self.moves:
            await self._open_all(bus)
        for _ in range(20 if self.moves else 0):
            await asyncio.sleep(self.chance.expovariate(0.7))
            await self._move_one(bus)
            if self.chance.random() < 0.15:
                await self._delete_one(bus)

    async def _move_one(self, bus: Bus) -> None:
        if not self.moves:
            return
        await self.movers.ask_one(bus)
        await self.movers.steer_one(bus)
        if self.chance.random() < 0.1:
            self.evacuating.append(self._group.create_task(self.movers.evacuate_one(bus)))

    async def _delete_one(self, bus: Bus) -> None:
        active = self.living()
        if self.movers.moving and self.chance.random() < 0.5:
            active = [build for build in active if build in self.movers.moving]
        if active and self.chance.random() < (0.7 if self.crowded else 0.3):
            build = self.chance.choice(active)
            self.deleted.add(build)
            await bus.publish(BuildDeleteRequested(build=build, cell=self.cell_of[build]))
            self.note(f"delete {build}")
        if self.chance.random() < 0.1:
            build = self.chance.choice(list(self.accepted))
            self.deleted.add(build)
            await bus.publish(BuildCancelRequested(build=build, anywhere=True))
            self.note(f"delete {build}, wherever it is")

    async def _cancel_one(self, bus: Bus) -> None:
        if self.chance.random() < 0.1:
            build = self.chance.choice(list(self.accepted))
            await bus.publish(BuildCancelRequested(build=build))
            self.note(f"cancel {build}")

    async def _edit_one(self, bus: Bus) -> None:
        """An operator disables a host or a cell, or no longer; hosts come into zones and leave them."""
        if self.chance.random() < 0.3:
            agent = self.chance.choice(self.fleet())
            host = self.chance.choice(agent.hosts)
            disabled = (DISABLED,) if self.chance.random() < 0.4 else ()
            edit = SetTraits(provider=host.root, traits=disabled)
            async with self.movers.editing:
                if host.root not in self.movers.fenced:
                    with suppress(Unavailable):
                        await bus.asker(topics.EDIT)(EditRequested(edit=edit))
                        self.note(f"edit {host.root} {disabled}")
        if self.chance.random() < 0.3:
            with suppress(Unavailable):
                moved = another_zone(self.chance, self.hosts())
                await bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=moved))
                self.note(f"edit {moved.aggregate} +{moved.add} -{moved.remove}")

        if self.chance.random() < 0.15:
            with suppress(Unavailable):
                cell = RegisterCell(cell=self.chance.choice(CELLS), enabled=self.chance.random() < 0.7)
                await bus.asker(topics.EDIT_CELL)(CellEditRequested(edit=cell))
                self.note(f"edit {cell.cell} {cell.enabled}")

    async def _open_all(self, bus: Bus) -> None:
        for name in CELLS:
            edit = CellEditRequested(edit=RegisterCell(cell=name, enabled=True))
            with suppress(Unavailable):
                await bus.asker(topics.EDIT_CELL)(edit)
        for host in self.hosts():
            async with self.movers.editing:
                if host.root not in self.movers.fenced:
                    with suppress(Unavailable):
                        edit_host = EditRequested(edit=SetTraits(provider=host.root, traits=()))
                        await bus.asker(topics.EDIT)(edit_host)
        self.note("all is open")

    def _node_event(self) -> NodeChanged:
        metal = [(agent, host) for agent in self.fleet() for host in agent.hosts if host.metal]
        agent, host = self.chance.choice(metal)
        state, maintenance = self.chance.choice(
            (("available", False), ("available", True), ("cleaning", False), ("clean failed", True))
        )
        return NodeChanged(
            event="provision_set",
            node=host.root,
            at=self.clock.now(),
            cell=agent.cell,
            agent=agent.agent,
            resource_class="baremetal",
            provision_state=state,
            maintenance=maintenance,
        )

    async def _crash_now_and_then(self, group: asyncio.TaskGroup) -> None:
        for _ in range(self.trouble.crashes):
            await asyncio.sleep(self.chance.expovariate(0.7))
            name = self.chance.choice(sorted(self._lives.keys() - self.off))
            life = self._lives[name]
            self.note(f"kill {name}")
            life.cancel()
            await asyncio.wait([life])
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.5, 3.0)))
            if name not in self.off and life is self._lives[name]:
                self._start(name, group)

    async def power_off(self, agent: SimAgent) -> bool:
        name = _life_of(agent)
        if name in self.off:
            return False
        self.off.add(name)
        self.note(f"power off {name}")
        self._lives[name].cancel()
        await asyncio.wait([self._lives[name]])
        if agent.agent in self._disks:
            self._disks[agent.agent].lose_power()
        return True

    def power_on(self, agent: SimAgent) -> None:
        self.note(f"power on {agent.agent}")
        self.off.discard(_life_of(agent))
        self._start(_life_of(agent), self._group)

    async def _pause(self) -> None:
        if self._begun and self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random() * 0.002)

    # Workers and their lives

    def _start(self, name: str, group: asyncio.TaskGroup) -> None:
        self._lives[name] = group.create_task(self._live(name, self._factories()[name]))

    async def _live(self, name: str, factory: Callable[[Bus], Worker]) -> None:
        async with Bus(LocalTransport(self.broker), self.clock) as bus:
            worker = factory(bus)
            if bus.replica in self.waiting:
                self._replicas[name] = bus.replica
            await bus.serve(worker, asyncio.Event())

    def fleet(self) -> list[SimAgent]:
        several = 2 if (self.seed % 7 != 3 if self.moves else self.seed % 8 == 0) else 1
        flat = fleet(
            CELLS,
            4,
            several,
            hardware=Hardware(vcpus=8, memory_mb=8192, disk_gb=100, vcpu_ratio=1.0, baremetal=2),
        )
        return [replace(agent, hosts=(*agent.hosts, _numa_host(agent))) for agent in flat]

    def hosts(self, cell: str = "") -> list[SimHost]:
        if not cell:
            return [host for agent in self.fleet() for host in agent.hosts]
        own = [host for agent in self.fleet() if agent.cell == cell for host in agent.hosts]
        return [host for host in own if not host.metal]

    def _factories(self) -> dict[str, Callable[[Bus], Worker]]:
        def conductor(cell: str) -> Callable[[Bus], Worker]:
            return lambda bus: cell_conductor(
                cell,
                self.databases[f"cell_{cell}"],
                bus.asker_of_many(topics.CELL_CLAIM),
                bus.asker_of_many(topics.CELL_RELEASE),
                limits=AttemptLimits(
                    build_timeout=30.0, delete_timeout=3.0
                ),  # a host may be longer without power
                clock=self.clock,
            )

        def placement(bus: Bus) -> Worker:
            return placement_worker(Placement(self.databases["placement"], self.clock), bus.publish, CELLS)

        def scheduler(bus: Bus) -> Worker:
            worker = a_scheduler(bus, self.clock, database=self.databases["scheduler"])
            self.waiting[bus.replica] = changes_of(worker)
            return hard_of_hearing(worker, self.chance) if self.deaf else worker

        plan = FaultPlan(
            seed=self.seed,
            reschedule=self.trouble.reschedule,
            abort=self.trouble.abort,
            hang=self.trouble.hang,
            durations=Durations.parse("exponential:0.5"),
            moves=MoveFaults.of_each(self.trouble.phases, self.trouble.phases_hang),
            move_durations=Durations.parse("exponential:1"),
        )
        crashes = CrashPlan(seed=self.seed, orders=12, away=2.0)

        def agent_of(agent: SimAgent) -> Callable[[Bus], Worker]:
            def made(bus: Bus) -> Worker:
                worker = compute_sim(
                    agent,
                    SimOptions(faults=plan, crashes=crashes),
                    clock=self.clock,
                    disk=self._disk(agent.agent),
                    providers=bus.asker(topics.CELL_PROVIDERS),
                    allocations=bus.asker(topics.CELL_ALLOCATIONS),
                )
                return with_shared_queues(worker, bus.publish, self.clock) if self.shared else worker

            return made

        def gateway(cell: str) -> Callable[[Bus], Worker]:
            return lambda bus: agent_gateway(
                cell, bus.asker(topics.AGENT_ORDER, timeout=ANSWER_SECONDS), self.clock
            )

        factories: dict[str, Callable[[Bus], Worker]] = {
            "placement": placement,
            "scheduler": scheduler,
            "ironic_sync": lambda bus: ironic_sync(),
        }
        if self.twins:
            factories |= {"placement's twin": placement, "scheduler's twin": scheduler}
        for cell in CELLS:
            factories[f"conductor.{cell}"] = conductor(cell)
        if self.twins and self.moves:
            factories[f"conductor.{CELLS[0]}'s twin"] = conductor(CELLS[0])
        for agent in self.fleet():
            factories[_life_of(agent)] = agent_of(agent)
        if self.shared:
            for cell in CELLS:
                factories[f"gateway.{cell}"] = gateway(cell)
            if self.twins:
                factories[f"gateway.{CELLS[0]}'s twin"] = gateway(CELLS[0])
        return factories

    def _disk(self, agent: str) -> AgentDisk:
        if self.forgetful and agent in self._disks:
            self.lost_disks.add(agent)
        if self.forgetful or agent not in self._disks:
            self._disks[agent] = _WatchedDisk(self)
        return self._disks[agent]

    def guests(self) -> list[GuestSeen]:
        """The guests that are there, where no disk was lost: that has lost its fences, too."""
        known = [disk for agent, disk in self._disks.items() if agent not in self.lost_disks]
        return [guest for disk in known for guest in disk.seen()]

    def went_back(self) -> set[str] | None:
        cells = [self.committed(f"cell_{cell}") for cell in CELLS]
        placement = self.committed("placement")
        if placement is None or None in cells:
            return None
        going = {build for cell in cells if cell is not None for (build,) in cell.execute(_GOING_BACK)}
        undone = {uuid for (uuid,) in placement.execute("SELECT uuid FROM retired_consumers")}
        return going | {one.build for one in self.movers.asked.values() if taken_back(one.move) in undone}

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def living(self) -> list[str]:
        active = sorted(build for build, (status, _) in self.ends.items() if status == "active")
        return [build for build in active if build not in self.deleted]

    async def _handle(self, get: Callable[[], Awaitable[T]], heard: Callable[[T], None]) -> None:
        while True:
            heard(await get())

    def _ended(self, build_ended: BuildEnded) -> None:
        self.cell_of[build_ended.build] = build_ended.cell
        forced = self.accepted[build_ended.build].forced_host
        if build_ended.status == "active" and forced and build_ended.host != forced:
            self.stop(Broken(f"{build_ended.build} was forced to {forced}, and is on {build_ended.host}"))
        self._end(build_ended.build, build_ended.status, build_ended.host)

    def _unplaceable(self, build_unplaceable: BuildUnplaceable) -> None:
        for instance in build_unplaceable.instances:
            self._end(instance, "unplaceable", "")

    def _end(self, build: str, status: str, host: str) -> None:
        self.note(f"end {build} {status} {host}")
        told = self.ends.setdefault(build, (status, host))
        if told != (status, host):
            self.stop(Broken(f"{build} ended as {told}, and then as {(status, host)}"))

    # Time and order

    def committed(self, store: str) -> sqlite3.Connection | None:
        """A store's one connection, while no transaction is open on it: what it shows is committed."""
        connection = inline_connection(self.databases[store])
        return None if connection.in_transaction else connection

    def note(self, event: str) -> None:
        self.history.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def settled(self, queue: str) -> None:
        self.steps += 1
        self.note(f"settled {queue}")
        stores = [self.committed(store) for store in self.databases]
        written = tuple([None if store is None else store.total_changes for store in stores])
        if written != self._looked_at:
            self._looked_at = written
            self.check(check_always)
        if any(len(one.store.queues) for one in self.waiting_rooms()) and self._quiet():
            self.check(check_waiting)

    def waiting_rooms(self) -> list[HostChanges]:
        return [
            self.waiting[self._replicas[name]]
            for name, life in self._lives.items()
            if name in self._replicas and not life.done()
        ]

    def check(self, invariant: Callable[["SimulatedWorld"], None]) -> None:
        try:
            invariant(self)
        except Broken as broken:  # raised here it would be taken for a bug of the handler that is at work
            self.stop(broken)

    def stop(self, broken: Broken) -> None:
        if self.broken is None:
            self.broken = broken
            self.note(f"broken: {broken}")
            self._telling.cancel()

    def _quiet(self) -> bool:
        busy = any(queue.items for queue in self.broker.queues.values())
        # an order in progress stays with the gateway, or unacknowledged where agents have their own queues
        return not busy and self.broker.delayed == self.broker.orders_delayed

    def _clean(self) -> bool:
        placement = self.committed("placement")
        return placement is not None and not placement.execute(KEPT).fetchall()

    def _awake(self) -> bool:
        return not any(disk.asleep for disk in self._disks.values())

    async def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONG
        while not condition():
            if loop.time() > deadline:
                raise Broken(f"{otherwise}: {sorted(set(self.accepted) - set(self.ends))}")
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.0)


def _numa_host(agent: SimAgent) -> SimHost:
    root = str(uuid5(_NAMES, agent.agent))
    cells = NumaDriver(
        vcpus=4, vcpu_ratio=1.0, pcpus=0, memory_mb=2048, reserved_mb=0, pages={}, disk_gb=0, traits=()
    )
    return SimHost(root, f"{agent.agent}-numa", {}, drivers=(cells,))


def _life_of(agent: SimAgent) -> str:
    return f"agent.{agent.agent}"


class _WatchedDisk(AgentDisk):
    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self.world = world
        self._moved: set[tuple[str, int]] = set()

    def seen(self) -> list[GuestSeen]:
        running = {id(guest) for guest in self.running()}
        return [
            GuestSeen(
                record.build,
                record.attempt,
                record.root,
                record.allocations,
                id(record) in running,
                (record.build, record.attempt) not in self._moved,
            )
            for record in self.all_guests
        ]

    def begin(self, order: BuildOrdered | MoveOrdered) -> None:
        if isinstance(order, MoveOrdered):
            self._moved.add((order.build, order.attempt))
        super().begin(order)
        self.world.check(check_guests)

    def rename(self, guest: GuestRecord, attempt: int, spec: BuildSpec | None = None) -> GuestRecord:
        self._moved.add((guest.build, attempt))
        return super().rename(guest, attempt, spec)

    def remove(self, build: str, attempts: range) -> None:
        self.world.check(check_guests)
        super().remove(build, attempts)


def _checked(name: str) -> Callable[..., object]:
    changes: Callable[..., object] = getattr(_WatchedDisk, name)

    def checked(disk: _WatchedDisk, *given: object) -> object:
        result = changes(disk, *given)
        disk.world.check(check_guests)
        return result

    return checked


for _name in ("become", "rename", "finished", "wake"):
    setattr(_WatchedDisk, _name, _checked(_name))


class _Watched(LocalBroker):
    def __init__(self, world: SimulatedWorld, chaos: Chaos) -> None:
        super().__init__(chaos=chaos, clock=world.clock)
        self.world = world
        self.orders_delayed = 0  # by gateways

    def settled(self, queue, item) -> None:  # type: ignore[no-untyped-def]  # the broker's own types
        super().settled(queue, item)
        if self.world.moves and not item.twin and "".join(queue.spec.keys[:1]).startswith(_SAID_LATE):
            self._say_late(queue, item)
        self.world.settled(queue.spec.name)

    def _arrive(self, queue, item, seconds) -> None:  # type: ignore[no-untyped-def]
        item.twin |= seconds > 0
        self.orders_delayed += seconds > 0 and queue.spec.name.startswith("gateway.")
        super()._arrive(queue, item, seconds)

    def _due(self, queue, item) -> None:  # type: ignore[no-untyped-def]
        self.orders_delayed -= queue.spec.name.startswith("gateway.")
        super()._due(queue, item)

    def _say_late(self, queue, item) -> None:  # type: ignore[no-untyped-def]
        chance = self.world.chance
        if chance.random() < self.world.trouble.late:
            again = QueuedItem(item.envelope, item.crashes, item.row, twin=True)
            self._arrive(queue, again, chance.expovariate(0.15))
