"""A small cloud in virtual time: every worker, one seed, and everything that can fail.

The real workers run on the in-process bus and on SQLite in memory, in one thread, with a clock that jumps.
Messages are reordered and repeated; workers are killed at any await and restarted; agents lose power; hosts
fail and hang; servers lose confirms, queues and commits. The invariants are checked in the databases after
every acknowledged message.
"""

import asyncio
import hashlib
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from berth.composition import open_placement
from berth.kit.choice_policies import choice_policy
from berth.settings import Settings
from bus import topics
from bus.aggregates import AggregateEditRequested
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.direct import DirectTransport, Handed
from bus.errors import Unavailable
from bus.host_health import FORCED_DOWN
from bus.local import Chaos
from bus.names import MakeName, NameEditRequested
from bus.protocol import Envelope, Receipt, Transport, decode, encode
from bus.sql.failures import Conflict
from bus.worker import Worker
from cell_conductor import AttemptLimits, cell_conductor
from cell_conductor.store import BuildStore
from compute_sim.core.faults import CrashPlan, Durations, FaultPlan, MoveFaults, SimOptions
from compute_sim.machines import SimAgent, SimHost
from compute_sim.worker import compute_sim
from features.groups.messages import GroupEditRequested
from features.groups.store import ServerGroups
from features.moves.core.start import undo_claim_id
from features.preemption.messages import PriorityEditRequested, SetPriority
from features.preemption.priorities import PriorityClasses
from features.shared_queues.gateway import agent_gateway
from features.shared_queues.messages import AGENT_ORDER, ANSWER_SECONDS, HeartbeatsMerged
from features.shared_queues.relayed_orders import with_shared_queues
from features.waiting.placing import WaitingBuilds
from features.waiting.tests.support.waiting_stores import waiting_builds_of
from ironic_sync.worker import ironic_sync
from placement_worker import Placement, placement_worker
from scheduler_worker import ChoicePolicy
from tests.simulation import repair
from tests.simulation.agents import CELLS, FileInMemory, WatchedDisk, simulated_fleet
from tests.simulation.broker import SimulatedBroker, SimulatedTransport
from tests.simulation.client import SimulatedClient
from tests.simulation.databases import StatementFaults, in_worker, make_databases
from tests.simulation.faults import FaultRates
from tests.simulation.headroom import HeadroomCheck, with_racks
from tests.simulation.invariants import (
    HOLDERS,
    Broken,
    GuestSeen,
    at_rest,
    check_always,
    check_at_rest,
    check_builds,
    check_waiting,
    preemptions,
    split_groups,
)
from tests.simulation.random_requests import GROUPS, PRIORITIES, ZONES, losing_changes
from tests.simulation.servers import ServerFaults
from tests.support.cloud_workers import a_scheduler
from tests.support.databases import inline_connection
from tests.support.feature_parts import agent_parts, conductor_parts

BUILDS = BuildStore()
START = 1_700_000_000.0
_REVERTED = "SELECT build FROM moves WHERE json_extract(story, '$.goal') IS NOT NULL"
_RECORDS = {"placement": "SELECT uuid FROM consumers", "cell": "SELECT id FROM builds"}  # by database
_STORED = "SELECT request FROM queued"
_REPEATED = 60.0  # seconds after which a conductor repeats a requeue; the interval then doubles
_SHARING = ("placement", "scheduler", "conductor", "gateway", "agent")  # names of workers in compact worlds
_RESTARTED = 0.5  # seconds after which a process that failed to start is started again
PATIENCE = 300.0  # virtual seconds after which whatever is still open is lost


@dataclass
class SimulatedWorld:
    seed: int
    faults: FaultRates = field(default_factory=FaultRates)
    requests: int = 14
    twins: bool = False  # two placements on one database, two schedulers, two conductors of one cell
    moves: bool = False  # instances are moved, too
    shared: bool = False  # agents share queues: a gateway for each cell, and with `twins` a second one
    preempts: bool = False  # some requests preempt instances of lower priority
    full: bool = False  # with `preempts`: requests of low priority fill the hosts
    headroom: bool = False  # the loss of any host, and in some worlds of any rack, is kept covered
    metal: bool = False  # all requests are for nodes, which change often

    cells = CELLS

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.server_chance = random.Random(f"servers of {self.seed}")
        self._publishing_chance = random.Random(f"publishing of {self.seed}")
        self.history: list[str] = []
        self.client = SimulatedClient(self)
        self.off: set[str] = set()  # agents without power
        self.steps = 0
        self.seconds = 0.0  # simulated
        self.broken: Broken | None = None
        self.commits_lost = False
        self.happened: Counter[str] = Counter()  # faults of servers, by their names in SERVER_FAULTS
        self.keeps_unknown_guests = self.faults.lost_commits > 0  # a setting of the agents
        self.reclasses = True  # Ironic changes the resource classes of nodes
        self.calm = False  # no more confirms are lost
        self.deleted_by_operator: set[str] = set()
        self.traceless: set[str] = set()  # builds without a guest or a record after lost commits
        self.split: set[int] = set()  # server groups whose members a reverted move has separated
        self.overlapping: dict[tuple[str, int], float] = {}  # late guests in parallel with their successors
        self.preempted_seen = 0  # instances that were preempted
        self.victims: set[str] = set()  # also those whose preemption was lost with its commit
        self.waiting_seen = 0  # how often a request was seen to wait with reason
        # more is requested than there is capacity, and more is deleted
        self.crowded = self.seed % 4 == 3 and not (self.moves or self.full)
        # placement, scheduler, conductors and agents share a process, and exchange messages in memory
        self.compact = self.seed % 5 == 0
        self.loses_changes = self.seed % 5 == 4  # schedulers miss changes of placement
        # killed agents lose their disks with all guests
        self.forgetful = not self.faults.killed_in_commit and self.seed % (9 if self.moves else 3) == 2
        self.lost_disks: set[str] = set()  # agents that have lost their disks, with their fences
        self.waiting: dict[str, WaitingBuilds] = {}  # of all schedulers that ever ran, by replica
        levels = ("host", "rack") if self.seed % 2 else ("host",)
        self.zoned = self.headroom and self.seed % 4 == 1  # racks have hosts of two zones
        self.failover = HeadroomCheck(self, levels) if self.headroom else None
        self._last_writes: tuple[int | None, ...] = ()
        self._replicas: dict[str, str] = {}  # of placements and schedulers, by worker
        self._placements: dict[str, Placement] = {}  # all that ever ran, by replica
        self._disks: dict[str, WatchedDisk] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}  # of processes, by each of their workers
        self._direct: dict[asyncio.Task[None], _CrashingTransport] = {}
        self.handed: list[Envelope] = []  # messages handed over in memory
        self._apart: set[str] = set()  # workers that left the shared process
        self._handover_kills = self.faults.crashes
        self._background: list[asyncio.Task[None]] = []
        self._evacuating: list[asyncio.Task[None]] = []

    @property
    def digest(self) -> str:
        """Two runs with equal digests have the same history."""
        return hashlib.sha256("\n".join(self.history).encode()).hexdigest()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self.clock = Clock(lambda: START + loop.time(), self.workers_chance(), loop.time)
        self.broker = self.make_broker()
        self.databases = await make_databases(
            CELLS, self._pause, StatementFaults(self.seed, self.faults.failing_statements, self._failed)
        )
        placement = open_placement(Settings(), self.databases["placement"], self.clock)
        for group in GROUPS:
            await placement.of(ServerGroups).edit(GroupEditRequested(edit=group))
        # a trait of berth, which no placement has from the beginning
        await placement.classes_and_traits.edit(
            NameEditRequested(kind="trait", edit=MakeName(name=FORCED_DOWN))
        )
        if self.preempts:
            classes = PriorityClasses(self.databases["scheduler"])
            for each in PRIORITIES:
                await classes.edit(PriorityEditRequested(edit=SetPriority(priority=each)))
        for zone in ZONES:
            await placement.aggregates.edit(AggregateEditRequested(edit=zone))
        if self.failover is not None:
            await self.failover.begin(placement)
        try:
            await self._run_workers()
        finally:
            self.seconds = loop.time()
            for database in self.databases.values():
                await database.close()

    async def _run_workers(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name in self._factories():
                if name not in self._lives:
                    self._start(name)
            self._story_task = group.create_task(self._story(group))
            await asyncio.wait([self._story_task])
            for task in (*self._background, *self._evacuating, *self._lives.values()):
                task.cancel()
        if self.broken is not None:
            raise self.broken
        self._story_task.result()
        self.preempted_seen = len(preemptions(at_rest(self, "placement")))
        if self.commits_lost:
            await repair.check_repaired(self)
        else:
            await self._check_at_rest()
            self._check_handed_over()
        expected = split_groups(self)
        if found := [each for each in await repair.breaches(self) if not each.startswith(expected)]:
            raise Broken(f"the audit finds {found}")

    def workers_chance(self) -> random.Random:
        """Return the source of the workers' random numbers and ids."""
        return self.chance

    def make_broker(self) -> SimulatedBroker:
        chaos = Chaos(random.Random(self.chance.random()), self.faults.reorder, self.faults.duplicate)
        return SimulatedBroker(self, chaos, self.server_chance)

    def connection(self) -> SimulatedTransport:
        return SimulatedTransport(self.broker)

    def new_id(self) -> str:
        """Return an id for a request of the client."""
        return self.clock.uuid()

    def _check_handed_over(self) -> None:
        """Check that no worker changed a message after it was handed over in memory, and that the message
        equals its decoded body. HeartbeatsMerged differs: it holds objects of a subclass.
        """
        for envelope in self.handed:
            message, body = envelope.message, bytes(envelope.body)
            if message is None:
                continue
            exact = isinstance(message, HeartbeatsMerged) or decode(type(message), body) == message
            if not exact or encode(message) != body:
                raise Broken(f"{envelope.key}: {message} was handed over, encoded as {body!r}")

    async def _check_at_rest(self) -> None:
        check_at_rest(self)
        for cell in CELLS:
            async with self.databases[f"cell_{cell}"].read() as tx:
                check_builds(self, await BUILDS.load(tx, self.client.accepted))

    # The course of events

    async def _story(self, group: asyncio.TaskGroup) -> None:
        async with Bus(self.connection(), self.clock) as bus:
            receiving = await self.client.listen(bus)
            crashing = group.create_task(self._crash_now_and_then())
            servers = [group.create_task(fault) for fault in ServerFaults(self, self.server_chance).work()]
            self._background = [group.create_task(work) for work in receiving]
            self._background += [crashing, *servers]
            await self.client.request_all(bus, self.requests * (2 if self.crowded else 1))
            await crashing
            if servers:
                await asyncio.wait(servers)
            self.calm = True
            await self._all_ended(bus, group)

    async def _all_ended(self, bus: Bus, group: asyncio.TaskGroup) -> None:
        client = self.client
        if self.commits_lost:
            await repair.repair(self, bus, PATIENCE)
        repeating = []
        if self.faults.loses_messages and not self.commits_lost:
            repeating.append(group.create_task(client.repeat_open(bus)))
            self._background += repeating
        await self._until(lambda: set(client.ends) == set(client.accepted), "some builds never ended")
        await self._until(lambda: all(one.done() for one in self._evacuating), "an evacuation never ended")
        await client.moving.finish(bus, PATIENCE)
        if self.preempts and self.happened["queue"] and not self.commits_lost:
            # until conductors have repeated lost requeues
            await asyncio.sleep(max(_REPEATED, self.time()) + _REPEATED / 10)
        if repeating:
            await self._until(client.is_deleted, "a deletion was never confirmed")
        await self._until(self._has_no_leftovers, "a deletion was never confirmed, or a holder left over")
        await self._until(self._has_no_moves, "an instance that was preempted never stops moving")
        await self._until(self._is_awake, "guests sleep after a power failure")
        if self.faults.failing_statements and not self.commits_lost:
            await self._until(self._none_waits, "a request that has ended is still stored as waiting")
        if self.failover is not None:
            await self._until(self.failover.is_settled, "headroom is neither kept nor lacking")
        for task in repeating:
            task.cancel()
        await self._until(self._is_quiet, "some messages are never acknowledged")

    def evacuate(self, bus: Bus) -> None:
        self._evacuating.append(self._group.create_task(self.client.moving.evacuate_one(bus)))

    async def _crash_now_and_then(self) -> None:
        for _ in range(self.faults.crashes):
            await asyncio.sleep(self.chance.expovariate(0.7))
            name = self.chance.choice(sorted(self._lives.keys() - self.off))
            await self.kill(name, self.chance)

    async def kill(self, name: str, chance: random.Random) -> None:
        """Kill a worker, and start it again a little later."""
        life = self._lives[name]
        self.note(f"kill {name}")
        await self._crash(life)
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.5, 3.0)))
        if life is self._lives[name] and (
            left := [each for each in self._together(name) if each not in self.off]
        ):
            self._start(left[0])

    def kill_after_a_handover(self) -> None:
        """Kill the shared process within milliseconds, now and then."""
        if self._handover_kills and self.chance.random() < 0.2 and not self.calm:
            self._handover_kills -= 1
            self._background.append(self._group.create_task(self._kill_soon()))

    async def _kill_soon(self) -> None:
        await asyncio.sleep(self.chance.random() * 0.004)
        await self.kill("scheduler", self.chance)

    async def _crash(self, life: asyncio.Task[None]) -> None:
        if life in self._direct:
            self._direct.pop(life).crashed = True
        life.cancel()
        await asyncio.wait([life])
        for name, file in self._files().items():
            if self._lives[name] is life:
                self.happened["file"] += file.is_behind
                file.kill()

    async def power_off(self, agent: SimAgent) -> bool:
        name = _life_of(agent)
        if name in self.off:
            return False
        self.off.add(name)
        self.note(f"power off {name}")
        together = self._together(name)
        await self._crash(self._lives[name])
        self._apart.add(name)
        if len(together) > 1:
            self._start(next(each for each in together if each != name))
        if agent.agent in self._disks:
            self._disks[agent.agent].lose_power()
        return True

    def power_on(self, agent: SimAgent) -> None:
        self.note(f"power on {agent.agent}")
        self.off.discard(_life_of(agent))
        self._start(_life_of(agent))

    def _failed(self, statement: str) -> None:
        self.happened["statements"] += 1
        self.note(statement)

    async def before_publishing(self) -> None:
        """Wait a moment, now and then, before messages reach the broker: a kill can come meanwhile."""
        if self._publishing_chance.random() < 0.5:
            await asyncio.sleep(self._publishing_chance.random() * 0.002)

    async def _pause(self) -> None:
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random() * 0.002)

    # Workers

    def _start(self, name: str) -> None:
        """Start the process that runs this worker."""
        together = [each for each in self._together(name) if each not in self.off]
        way = self.connection()
        if len(together) == 1:
            life = self._group.create_task(self._live(together, way))
        else:
            direct = _CrashingTransport(way, self)
            life = self._group.create_task(self._live(together, direct))
            self._direct[life] = direct
        self._lives |= dict.fromkeys(together, life)

    def _together(self, name: str) -> list[str]:
        """Return the workers that share a process with this one, including itself."""
        if not self.compact or name in self._apart or not name.startswith(_SHARING) or "twin" in name:
            return [name]
        return [
            each
            for each in self._factories()
            if each.startswith(_SHARING) and "twin" not in each and each not in self._apart
        ]

    async def _live(self, names: Sequence[str], way: Transport) -> None:
        """Run the workers of a process. If a statement of their start fails, the process ends; then start it
        again.
        """
        in_worker.set(True)
        try:
            await self._serve(names, way)
        except* (Unavailable, Conflict) as ended:
            self.note(f"{names[0]} ends: {ended.exceptions}")
            life = asyncio.current_task()
            asyncio.get_running_loop().call_later(_RESTARTED, self._start_again, names[0], life)

    def _start_again(self, name: str, life: asyncio.Task[None] | None) -> None:
        if life is self._lives[name] and name not in self.off:
            self._start(name)

    async def _serve(self, names: Sequence[str], way: Transport) -> None:
        async with Bus(way, self.clock) as bus:
            workers = [self._factories()[name](bus) for name in names]
            self._replicas |= {
                name: bus.replica for name in names if name.startswith(("placement", "scheduler"))
            }
            if len(workers) == 1:
                await bus.serve(workers[0], asyncio.Event())
            else:
                async with asyncio.TaskGroup() as group:
                    for worker in workers:
                        group.create_task(bus.serve(worker, asyncio.Event()))

    def fleet(self) -> list[SimAgent]:
        if self.headroom:
            return with_racks(simulated_fleet(8, 2), zoned=self.zoned)
        hosts_per_agent = 2 if (self.seed % 7 != 3 if self.moves else self.seed % 8 == 0) else 1
        return simulated_fleet(2 if self.preempts else 4, hosts_per_agent)

    def hosts(self, cell: str = "") -> list[SimHost]:
        """Return the hosts of a cell that can be the target of a move; without a cell, all hosts."""
        if not cell:
            return [host for agent in self.fleet() for host in agent.hosts]
        of_cell = [host for agent in self.fleet() if agent.cell == cell for host in agent.hosts]
        return [host for host in of_cell if not host.metal]

    def _factories(self) -> dict[str, Callable[[Bus], Worker]]:
        def placement(bus: Bus) -> Worker:
            made = self._placements[bus.replica] = open_placement(
                Settings(), self.databases["placement"], self.clock
            )
            return placement_worker(made, bus.publish, CELLS)

        def scheduler(bus: Bus) -> Worker:
            # half of the worlds have the default profile, the others only the kernel's weighers
            chosen = choice_policy(Settings()) if self.seed % 2 else ChoicePolicy()
            worker = a_scheduler(bus, self.clock, database=self.databases["scheduler"], policy=chosen)
            self.waiting[bus.replica] = waiting_builds_of(worker)
            return losing_changes(worker, self.chance) if self.loses_changes else worker

        factories: dict[str, Callable[[Bus], Worker]] = {
            "placement": placement,
            "scheduler": scheduler,
            "ironic_sync": lambda bus: ironic_sync(),
        }
        if self.twins:
            factories |= {"placement's twin": placement, "scheduler's twin": scheduler}
        for cell in CELLS:
            factories[f"conductor.{cell}"] = self._conductor(cell)
        if self.twins and self.moves:
            factories[f"conductor.{CELLS[0]}'s twin"] = self._conductor(CELLS[0])
        for agent in self.fleet():
            factories[_life_of(agent)] = self._agent(agent)
        if self.shared:
            for cell in CELLS:
                factories[f"gateway.{cell}"] = self._gateway(cell)
            if self.twins:
                factories[f"gateway.{CELLS[0]}'s twin"] = self._gateway(CELLS[0])
        return factories

    def _conductor(self, cell: str) -> Callable[[Bus], Worker]:
        # A host can be without power for longer than these limits.
        limits = AttemptLimits(build_timeout=30.0, delete_timeout=3.0, destroy_again_after=_REPEATED)
        return lambda bus: cell_conductor(
            cell,
            self.databases[f"cell_{cell}"],
            bus.asker_of_many(topics.CELL_CLAIM),
            bus.asker_of_many(topics.CELL_RELEASE),
            limits=limits,
            clock=self.clock,
            parts=conductor_parts(cell),
        )

    def _gateway(self, cell: str) -> Callable[[Bus], Worker]:
        return lambda bus: agent_gateway(cell, bus.asker(AGENT_ORDER, timeout=ANSWER_SECONDS), self.clock)

    def _agent(self, agent: SimAgent) -> Callable[[Bus], Worker]:
        plan = FaultPlan(
            seed=self.seed,
            reschedule=self.faults.reschedule,
            abort=self.faults.abort,
            hang=self.faults.hang,
            durations=Durations.parse("exponential:0.5"),
            moves=MoveFaults.of_each(self.faults.phases, self.faults.phases_hang),
            move_durations=Durations.parse("exponential:1"),
        )
        options = SimOptions(
            faults=plan,
            crashes=CrashPlan(seed=self.seed, orders=12, away=2.0),
            # an agent that restarts before the repair must not destroy guests whose claims were lost
            keeps_unknown_guests=self.keeps_unknown_guests,
        )

        def make_agent(bus: Bus) -> Worker:
            worker = compute_sim(
                agent,
                options,
                clock=self.clock,
                disk=self._disk(agent.agent),
                providers=bus.asker(topics.CELL_PROVIDERS),
                allocations=bus.asker(topics.CELL_ALLOCATIONS),
                parts=agent_parts(options),
            )
            return with_shared_queues(worker, bus.publish, self.clock) if self.shared else worker

        return make_agent

    def _disk(self, agent: str) -> WatchedDisk:
        """Return an agent's disk at the start of its process."""
        known = self._disks.get(agent)
        if known is not None and self.forgetful:
            self.lost_disks.add(agent)
        if known is None or self.forgetful:
            file = FileInMemory(self.server_chance) if self.faults.killed_in_commit else None
            self._disks[agent] = WatchedDisk(self, file)
        elif self.faults.killed_in_commit:
            self._disks[agent] = known.after_power_failure()
        if agent in self.lost_disks:
            self.note_traceless()
        return self._disks[agent]

    def agents_writing(self) -> list[str]:
        """Return the workers of agents whose files lack changes that are not committed yet."""
        behind = [name for name, file in self._files().items() if file.is_behind]
        return [name for name in behind if name not in self.off and not self._lives[name].done()]

    def _files(self) -> dict[str, FileInMemory]:
        files = {f"agent.{agent}": disk.file for agent, disk in self._disks.items()}
        return {name: file for name, file in files.items() if isinstance(file, FileInMemory)}

    # What the invariants read

    def guests(self) -> list[GuestSeen]:
        """Return all guests of agents that have not lost their disks."""
        known = [disk for agent, disk in self._disks.items() if agent not in self.lost_disks]
        return [guest for disk in known for guest in disk.seen()]

    def note_traceless(self) -> None:
        """Note the ended builds of which a fail-over and a lost disk left neither a record nor a guest. They
        are lost: docs/delivery.md does not promise more, and `berth audit heal` releases what they held.
        """
        if not (self.commits_lost and self.forgetful):
            return
        left = {guest.build for disk in self._disks.values() for guest in disk.seen()}
        for name, database in self.databases.items():
            if (records := _RECORDS.get(name.partition("_")[0])) is not None:
                left.update(build for (build,) in inline_connection(database).execute(records))
        self.traceless |= self.client.ends.keys() - left

    def reverted(self) -> set[str] | None:
        """Return the builds whose move was reverted; None while a transaction is open."""
        cells = [self.committed(f"cell_{cell}") for cell in CELLS]
        placement = self.committed("placement")
        if placement is None or None in cells:
            return None
        going = {build for cell in cells if cell is not None for (build,) in cell.execute(_REVERTED)}
        undone = {uuid for (uuid,) in placement.execute("SELECT uuid FROM retired_consumers")}
        moves = self.client.moving.requested.values()
        return going | {each.build for each in moves if undo_claim_id(each.move) in undone}

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def committed(self, store: str) -> sqlite3.Connection | None:
        """Return a database's one connection; None while it shows uncommitted data."""
        connection = inline_connection(self.databases[store])
        return None if connection.in_transaction else connection

    def note(self, event: str) -> None:
        self.history.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def settled(self, queue: str) -> None:
        """Check the invariants after an acknowledged message, if a database has changed."""
        self.steps += 1
        self.note(f"settled {queue}")
        if self.commits_lost:  # until the repair they need not hold
            return
        stores = [self.committed(store) for store in self.databases]
        written = tuple([None if store is None else store.total_changes for store in stores])
        if written != self._last_writes:
            self._last_writes = written
            self.check(check_always)
        if any(len(each.store.queues) for each in self.schedulers()) and self._is_quiet():
            self.check(check_waiting)
        if (failover := self.failover) is not None:
            self.check(lambda _: failover.check_gauges())

    def schedulers(self) -> list[WaitingBuilds]:
        return [self.waiting[replica] for replica in self._living("scheduler")]

    def placements(self) -> list[Placement]:
        return [self._placements[replica] for replica in self._living("placement")]

    def _living(self, worker: str) -> list[str]:
        """Return the replicas of the processes of a worker that are alive."""
        return [
            self._replicas[name]
            for name, life in self._lives.items()
            if name.startswith(worker) and name in self._replicas and not life.done()
        ]

    def check(self, invariant: Callable[["SimulatedWorld"], None]) -> None:
        if self.commits_lost:
            return
        try:
            invariant(self)
        except Broken as broken:  # raised here, it would count as a bug of the handler in progress
            self.stop(broken)

    def stop(self, broken: Broken) -> None:
        if self.broken is None:
            self.broken = broken
            self.note(f"broken: {broken}")
            self._story_task.cancel()

    def _is_quiet(self) -> bool:
        busy = any(queue.items for queue in self.broker.queues.values())
        # an order in progress stays with the gateway, or unacknowledged where agents have their own queues
        return not busy and self.broker.delayed == self.broker.orders_delayed

    def _has_no_leftovers(self) -> bool:
        """Return whether no guest is left; a deletion that is not confirmed can still leave one."""
        placement = self.committed("placement")
        ended = self.commits_lost or self.client.is_deleted()
        return ended and placement is not None and not placement.execute(HOLDERS).fetchall()

    def _has_no_moves(self) -> bool:
        """Return whether no cell moves an instance: schedulers unshelve instances that were preempted."""
        if not self.preempts or self.commits_lost:
            return True
        cells = [self.committed(f"cell_{cell}") for cell in CELLS]
        moving = "SELECT id FROM builds WHERE status = 'moving'"
        return all(cell is not None and not cell.execute(moving).fetchall() for cell in cells)

    def _none_waits(self) -> bool:
        """Return whether schedulers store no request any more."""
        scheduler = self.committed("scheduler")
        return scheduler is not None and not scheduler.execute(_STORED).fetchall()

    def _is_awake(self) -> bool:
        return not any(disk.asleep for disk in self._disks.values())

    async def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while not condition():
            if loop.time() > deadline:
                raise Broken(f"{otherwise}: {sorted(set(self.client.accepted) - set(self.client.ends))}")
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.0)


class _CrashingTransport(DirectTransport):
    """Loses what it has handed over when its process is killed, which happens also just after a hand-over."""

    crashed = False

    def __init__(self, broker: Transport, world: SimulatedWorld) -> None:
        super().__init__(broker)
        self._world = world

    def _hand_over(self, envelope: Envelope) -> Handed | None:
        handed = super()._hand_over(envelope)
        if handed is not None:
            self._world.handed.append(envelope)
        return handed

    async def _until_handled(self, awaited: Sequence[Handed], receipt: Receipt) -> None:
        self._world.kill_after_a_handover()
        await super()._until_handled(awaited, receipt)

    def _return(self, handed: Handed) -> None:
        if not self.crashed:  # else the message is lost with the process
            super()._return(handed)


def _life_of(agent: SimAgent) -> str:
    return f"agent.{agent.agent}"
