"""Random requests to the simulated cloud, and random changes by its operator."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from bus import topics
from bus.aggregates import ChangeAggregate, MakeAggregate
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, Unavailable
from bus.groups import MakeGroup
from bus.host_health import FORCED_DOWN
from bus.messages import BuildRequested
from bus.moves import MoveEnded, MoveKind, MoveProgress, MoveRefused, MoveRequested, MoveSteered, Steering
from bus.replication import PlacementChanged
from bus.requests import Flavor, Hints, Image
from bus.resources import Edited, EditRequested, FindAllocations, SetTraits
from bus.worker import On, Worker
from compute_sim.machines import SimAgent, SimHost
from tests.simulation.invariants import Broken

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

METAL = {
    "resources:CUSTOM_BAREMETAL": "1",
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources:DISK_GB": "0",
}
GROUPS = (
    MakeGroup(group=str(UUID(int=1)), name="apart", policy="anti-affinity"),
    MakeGroup(group=str(UUID(int=2)), name="two by two", policy="anti-affinity", max_per_host=2),
    MakeGroup(group=str(UUID(int=3)), name="together", policy="affinity"),
    MakeGroup(group=str(UUID(int=4)), name="rather apart", policy="soft-anti-affinity"),
)
ZONES = tuple(
    MakeAggregate(aggregate=str(UUID(int=10 + index)), name=zone, metadata={"availability_zone": zone})
    for index, zone in enumerate(("east", "west"))
)


def is_metal(request: BuildRequested) -> bool:
    return request.flavor.name == "metal"


def a_request(chance: Random, new_id: Callable[[], str], hosts: Sequence[SimHost]) -> BuildRequested:
    kind = chance.random()
    if kind < 0.1:
        flavor = Flavor(name="monster", vcpus=10_000)
    elif kind < 0.25:
        flavor = Flavor(name="metal", extra_specs=METAL)
    else:
        flavor = Flavor(name="small", vcpus=chance.randint(1, 4), memory_mb=256)
    count = chance.choice((1, 1, 1, 2, 3)) if flavor.name == "small" else 1
    joins = chance.choice(GROUPS).group if chance.random() < 0.4 else None
    wait = chance.choice(("", "5s", "20s", "60s"))
    smaller = Flavor(name="tiny", vcpus=1, memory_mb=128)
    return BuildRequested(
        request=new_id(),
        instances=tuple(new_id() for _ in range(count)),
        flavor=flavor,
        or_else=(smaller,) if chance.random() < 0.2 else (),
        at_least=chance.randint(1, count) if count > 1 and chance.random() < 0.4 else 0,
        zone=chance.choice(ZONES).name if chance.random() < 0.1 else "",
        forced_host=chance.choice(hosts).host if chance.random() < 0.1 else "",
        hints=Hints(group=joins),
        wait=wait,
        priority=chance.choice((0, 0, 5)) if wait else 0,
    )


_KINDS: dict[MoveKind, int] = {"migrate": 6, "live": 5, "resize": 5, "shelve": 2, "rebuild": 2, "unshelve": 1}


def a_move(
    chance: Random, id_: str, build: str, cell: str, hosts: Sequence[SimHost], *, shelved: bool
) -> MoveRequested:
    [kind] = chance.choices(list(_KINDS), list(_KINDS.values()))
    if shelved and chance.random() < 0.8:
        kind = "unshelve"
    seeks = kind not in ("shelve", "rebuild")
    verify = kind in ("migrate", "resize") and chance.random() < 0.5
    return MoveRequested(
        move=id_,
        build=build,
        kind=kind,
        cell=cell,
        flavor=Flavor(name="small", vcpus=chance.randint(1, 4), memory_mb=256) if kind == "resize" else None,
        image=Image(name="another") if kind == "rebuild" else None,
        wanted_host=chance.choice(hosts).host if seeks and chance.random() < 0.1 else "",
        forced_host=chance.choice(hosts).host if seeks and chance.random() < 0.1 else "",
        same_host=kind == "resize" and chance.random() < 0.5,
        verify=verify,
        verify_for=chance.choice(("", "5s", "20s")) if verify else "",
        alternates=chance.choice((0, 2, 2)),
    )


def a_patient_move(asked: MoveRequested, share: float) -> MoveRequested:
    own = Random(asked.move)
    if asked.kind in ("shelve", "rebuild") or own.random() >= share:
        return asked
    asked = msgspec.structs.replace(
        asked, wait=own.choice(("5s", "20s", "60s")), priority=own.choice((0, 0, 5))
    )
    if asked.kind == "unshelve" or own.random() < 0.4:
        return asked
    larger = Flavor(name="small", vcpus=own.randint(6, 9), memory_mb=256)
    return msgspec.structs.replace(asked, kind="resize", flavor=larger, wanted_host="", forced_host="")


def another_zone(chance: Random, hosts: Sequence[SimHost]) -> ChangeAggregate:
    zone, root = chance.choice(ZONES).aggregate, (chance.choice(hosts).root,)
    if chance.random() < 0.7:
        return ChangeAggregate(aggregate=zone, add=root, force=True)
    return ChangeAggregate(aggregate=zone, remove=root, force=True)


def hard_of_hearing(worker: Worker, chance: Random) -> Worker:
    def deafened(row: On) -> On:
        if row.address.topic is not topics.PLACEMENT_CHANGED:
            return row

        async def handle_many(messages: Sequence[PlacementChanged]) -> Any:
            await row.handler([message for message in messages if chance.random() > 0.33])
            return [None] * len(messages)

        return replace(row, handler=handle_many)

    return replace(worker, consumes=[deafened(row) for row in worker.consumes])


_STEERED: tuple[Steering, ...] = ("abort", "revert", "confirm", "force")
_NOBODY_KNOWS = (
    ("start", "timed out"),
    ("rebuild", "timed out"),
    ("resume", "timed out"),
    ("resume", "failed"),
)
_AGAIN = 3.0


class Movers:
    def __init__(self, world: "SimulatedWorld") -> None:
        self.world = world
        self.chance = world.chance
        self.asked: dict[str, MoveRequested] = {}
        self.builds: set[str] = set()
        self.told: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.codes: dict[str, str] = {}
        self.ended_badly: set[str] = set()
        self.shelved: set[str] = set()
        self.fenced: set[str] = set()  # roots that an operator has marked, and alone may edit
        self.editing = asyncio.Lock()

    @property
    def open(self) -> list[str]:
        return [move for move in self.asked if move not in self.ends]

    @property
    def moving(self) -> list[str]:
        return sorted({self.asked[move].build for move in self.told if move not in self.ends})

    # What they do

    async def ask_one(self, bus: Bus) -> None:
        living = self.world.living()
        if not living or self.chance.random() > 0.6:
            return
        if self.chance.random() < 0.85:  # that may be
            ready = [
                one for one in living if one not in self.moving and not is_metal(self.world.accepted[one])
            ]
            living = ready or living
        build = self.chance.choice(living)
        cell = self.world.cell_of[build]
        asked = a_move(
            self.chance,
            self.world.clock.uuid(),
            build,
            cell if self.chance.random() < 0.5 else "",
            self.world.hosts(cell if self.chance.random() < 0.8 else ""),
            shelved=build in self.shelved,
        )
        asked = a_patient_move(asked, self.world.trouble.waits)
        await self._ask(bus, asked)
        if self.chance.random() < 0.2:
            await bus.publish(asked)  # an impatient client

    async def steer_one(self, bus: Bus) -> None:
        begun = [move for move in self.told if move not in self.ends]
        if begun and self.chance.random() < 0.5:
            waiting = [move for move in begun if self.told[move] == "verify"]
            move = self.chance.choice(waiting if waiting and self.chance.random() < 0.6 else begun)
            verifies = self.told[move] == "verify" and self.chance.random() < 0.8
            await self._steer(bus, move, self.chance.choice(("confirm", "revert") if verifies else _STEERED))

    async def evacuate_one(self, bus: Bus) -> None:
        """Everything that was on the hosts of one agent is to be built elsewhere; later they come back."""
        world, agent = self.world, self.chance.choice(self.world.fleet())
        roots = {host.root for host in agent.hosts}
        if self.fenced & roots or not await world.power_off(agent):
            return
        self.fenced |= roots
        world.note(f"evacuate {agent.agent}")
        async with self.editing:  # whatever was being edited of them is so by now
            marked = [root for root in sorted(roots) if await self._mark(bus, root, FORCED_DOWN)]
        moves = [await self._evacuate(bus, build) for build in await self._on(bus, marked)]
        while not all(move in self.told or move in self.ends for move in moves):
            await asyncio.sleep(0.25)
        await asyncio.sleep(self.chance.expovariate(0.2))
        await self._back(bus, agent, marked)
        self.fenced -= roots

    async def finish(self, bus: Bus, patience: float) -> None:
        """Until every move has ended: what waits to be confirmed, or reverted, is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while self.open:
            if loop.time() > deadline:
                raise Broken(f"some moves never ended: {self._open_moves()}")
            for move in self.open:
                if self.asked[move].verify and move in self.told:
                    await self._steer(bus, move, self.chance.choice(("confirm", "revert")))
            await asyncio.sleep(_AGAIN)

    async def ask_again(self, bus: Bus) -> None:
        """Once more, long after."""
        if self.asked:
            await bus.publish(self.chance.choice(list(self.asked.values())))

    async def _ask(self, bus: Bus, asked: MoveRequested) -> None:
        self.asked[asked.move] = asked
        self.builds.add(asked.build)
        await bus.publish(asked)
        self.world.note(f"asked for {asked.kind} {asked.move} of {asked.build}")

    async def _evacuate(self, bus: Bus, build: str) -> str:
        kind: MoveKind = "evacuate"
        asked = MoveRequested(move=self.world.clock.uuid(), build=build, kind=kind)
        await self._ask(bus, asked)
        return asked.move

    async def _steer(self, bus: Bus, move: str, to: Steering) -> None:
        build = self.asked[move].build
        self.world.note(f"{to} {move}")
        await bus.publish(MoveSteered(move=move, build=build, cell=self.world.cell_of[build], to=to))

    async def _back(self, bus: Bus, agent: SimAgent, marked: list[str]) -> None:
        first = self.chance.random() < 0.5
        if first:
            self.world.power_on(agent)
        async with self.editing:
            for root in marked:
                await self._mark(bus, root)
        if not first:
            self.world.power_on(agent)

    async def _mark(self, bus: Bus, root: str, *traits: str) -> bool:
        """False: placement does not know this host."""
        while True:
            with suppress(Unavailable, AnswerRefused):
                edit = SetTraits(provider=root, traits=traits)
                return isinstance((await bus.asker(topics.EDIT)(EditRequested(edit=edit))).result, Edited)
            await asyncio.sleep(0.25)

    async def _on(self, bus: Bus, roots: list[str]) -> list[str]:
        if not roots:
            return []
        while True:
            with suppress(Unavailable, AnswerRefused):
                answer = await bus.asker(topics.ALLOCATIONS)(FindAllocations(providers=tuple(roots)))
                return sorted(
                    consumer.id for consumer in answer.consumers if consumer.id in self.world.accepted
                )
            await asyncio.sleep(0.25)

    def hear_told(self, move_progress: MoveProgress) -> None:
        if move_progress.refused or move_progress.move not in self.asked:
            return
        self.world.note(f"told {move_progress.move} {move_progress.phase}")
        self.told[move_progress.move] = move_progress.phase
        if self.ends.get(move_progress.move, "").startswith("refused"):
            self.world.stop(
                Broken(f"the move {move_progress.move} was refused, and is under way: {move_progress}")
            )

    def hear_refused(self, move_refused: MoveRefused) -> None:
        codes = self.codes.setdefault(move_refused.move, move_refused.code)
        if move_refused.code not in (codes, ""):
            self.world.stop(
                Broken(
                    f"the move {move_refused.move} was refused for {codes}, and then for {move_refused.code}"
                )
            )
        self._end(move_refused.move, f"refused: {move_refused.reason}")
        if move_refused.move in self.told:
            self.world.stop(
                Broken(f"the move {move_refused.move} was under way, and is refused: {move_refused.reason}")
            )

    def hear_ended(self, move_ended: MoveEnded) -> None:
        if any((phase.phase, phase.outcome) in _NOBODY_KNOWS for phase in move_ended.phases):
            self.ended_badly.add(move_ended.build)
        if move_ended.end == "done" and move_ended.kind == "shelve":
            self.shelved.add(move_ended.build)
        elif move_ended.end == "done" and move_ended.kind == "unshelve":
            self.shelved.discard(move_ended.build)
        self._end(
            move_ended.move, f"{move_ended.end} on {move_ended.root}: {move_ended.reason} {move_ended.phases}"
        )

    def _end(self, move: str, how: str) -> None:
        self.world.note(f"end of {move}: {how}")
        told = self.ends.setdefault(move, how)
        if told != how:
            self.world.stop(Broken(f"the move {move} ended as {told}, and then as {how}"))

    def _open_moves(self) -> list[tuple[str, str, str]]:
        return [(move, self.asked[move].kind, self.told.get(move, "not begun")) for move in self.open]
