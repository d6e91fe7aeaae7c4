"""A scheduler and a conductor with scripted answers about moves, which record their requests."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from bus import topics
from bus.claims import Choice
from bus.messages import BuildCancelled, BuildCancelRequested, BuildPlaced, Selection
from bus.queries import (
    BuildsFound,
    BuildStands,
    FindBuilds,
    FindInstances,
    FindWaiting,
    Instance,
    InstancesFound,
    WaitingFound,
    WaitingRequest,
)
from bus.requests import BuildSpec, Flavor, Image
from bus.resources import FindProviders, ProvidersFound
from bus.sql.database import Database
from bus.vocabulary import Message
from bus.worker import Worker, answers, on
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_PROGRESS,
    MOVE_REFUSED,
    MOVE_REQUESTED,
    MOVE_STEER,
    FindMoves,
    MoveEnd,
    MoveEnded,
    MoveKind,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MovesFound,
    MoveStands,
    MoveSteered,
    PhaseOver,
)
from features.moves.placing import refusal_of
from scheduler_worker.extension import decisions
from tests.support.ids import uid

Doing = Callable[[MoveRequested], Iterable[Message]]
SMALL = Flavor(name="small", vcpus=2, memory_mb=512, disk_gb=1, extra_specs={"hw:x": "1"})


def on_host(number: int) -> Selection:
    root = uid(number, "a")
    return Selection(
        root=root, host=f"host-{number}", agent=f"agent-{number}", choice=Choice({root: {"VCPU": 2}})
    )


def an_instance_there(
    number: int, host: int, status: str = "active", image: Image | None = None
) -> BuildStands:
    spec = BuildSpec(flavor=SMALL, image=image)
    placed = BuildPlaced(
        build=uid(number), request=uid(number), cell="c1", chosen=on_host(host), generation=1, spec=spec
    )
    return BuildStands(
        build=uid(number), status=status, placed=placed, host=f"host-{host}", attempt=1, generation=1,
        chosen=on_host(host), spec=spec,
    )  # fmt: skip


@dataclass
class FakeMovers:
    builds: dict[str, BuildStands] = field(default_factory=dict)
    moves: dict[str, MoveStands] = field(default_factory=dict)
    asked: list[MoveRequested] = field(default_factory=list)
    steered: list[MoveSteered] = field(default_factory=list)
    doing: Doing | None = None
    steering: Callable[[MoveSteered], Iterable[Message]] | None = None
    spare: int = 9  # number of the host to which all moves go
    waiting: list[WaitingRequest] = field(default_factory=list)
    reported_waiting: int = 0
    cancelled: list[BuildCancelRequested] = field(default_factory=list)
    cancels: bool = True  # False: a cancelled move has started just before, and is in `started`
    started: list[MoveStands] = field(default_factory=list)
    looked: int = 0
    listed: int = 0
    alone: bool = True
    database: Database | None = None  # that of the schedulers, which records refusals

    def have(self, *builds: BuildStands) -> None:
        self.builds |= {build.build: build for build in builds}

    def worker(self) -> Worker:
        ends = [MOVE_PROGRESS, MOVE_ENDED]
        return Worker(
            "movers",
            consumes=[
                on(MOVE_REQUESTED, self._move, emits=[MOVE_REFUSED, *ends]),
                on(MOVE_STEER.at(cell="c1"), self._steer, emits=ends),
                on(topics.BUILD_CANCEL, self._cancel, emits=[topics.BUILD_CANCELLED]),
            ],
            answers=[
                answers(topics.FIND_BUILDS, self.find_builds, cell="c1"),
                answers(FIND_MOVES, self.find_moves, cell="c1"),
                answers(topics.FIND_INSTANCES, self.find_instances, cell="c1"),
                answers(topics.WAITING, self._waiting),
                *([answers(topics.PROVIDERS, self._hosts)] if self.alone else []),
            ],
        )

    async def _move(self, asked: MoveRequested) -> list[Message]:
        self.asked.append(asked)
        messages = list((self.doing or self.well)(asked))
        if self.database is not None:
            refusals = [refusal_of(asked, None, each) for each in messages if isinstance(each, MoveRefused)]
            async with self.database.write() as tx:
                await decisions.add_refusals(tx, refusals, 1000.0)
        return messages

    async def _steer(self, move_steered: MoveSteered) -> list[Message]:
        self.steered.append(move_steered)
        return list(self.steering(move_steered)) if self.steering is not None else []

    async def _cancel(self, asked: BuildCancelRequested) -> BuildCancelled:
        self.cancelled.append(asked)
        return BuildCancelled(build=asked.build, waited=self.cancels, reply_to=asked.reply_to)

    async def _waiting(self, asked: FindWaiting) -> WaitingFound:
        found = [one for one in self.waiting if {one.request, *one.builds} & {*asked.requests}]
        self.reported_waiting += bool(found)
        return WaitingFound(waiting=tuple(found), count=len(found))

    async def _hosts(self, asked: FindProviders) -> ProvidersFound:
        return ProvidersFound(providers=())

    def waits(self, number: int, build: int) -> WaitingRequest:
        """Add a move of this build that waits for capacity, and return it."""
        waits = WaitingRequest(
            request=uid(number, "e"), builds=(uid(build),), instances=1, project="p", flavor="small",
            priority=0, since=1000.0, until=2000.0, kind="k", position=2, lacks="no room", wakes="2 VCPU",
            move="migrate",
        )  # fmt: skip
        self.waiting.append(waits)
        return waits

    def well(self, asked: MoveRequested) -> list[Message]:
        number = int((asked.wanted_host or f"host-{self.spare}").rpartition("-")[2])
        self.builds[asked.build] = an_instance_there(int(asked.build[-12:]), number)
        return [self.sent(asked, "prepare", number), self.ended(asked, host=f"host-{number}")]

    def sent(
        self, of: MoveRequested | MoveSteered, phase: str, host: int = 9, percent: int = 0, refused: str = ""
    ) -> MoveProgress:
        return MoveProgress(
            move=of.move, build=of.build, cell="c1", phase=phase, host=f"host-{host}", percent=percent,
            refused=refused, reply_to=of.reply_to,
        )  # fmt: skip

    def ended(
        self, of: MoveRequested | MoveSteered, end: MoveEnd = "done", host: str = "host-9", reason: str = "",
        kind: MoveKind = "migrate",
    ) -> MoveEnded:  # fmt: skip
        kind = of.kind if isinstance(of, MoveRequested) else kind
        self.moves[of.move] = MoveStands(
            move=of.move, build=of.build, kind=kind, cell="c1", phase=end, host=host, at=host, ended=1000.0,
            reason=reason,
        )  # fmt: skip
        failed = (PhaseOver("start", "host-9", "failed", "no boot disk", 1.0, 2.0),) if reason else ()
        return MoveEnded(
            move=of.move, build=of.build, kind=kind, cell="c1", end=end, host=host, reason=reason,
            phases=failed, reply_to=of.reply_to,
        )  # fmt: skip

    def refused(self, asked: MoveRequested, code: str = "no_host") -> MoveRefused:
        return MoveRefused(
            move=asked.move, build=asked.build, kind=asked.kind, reason="no host would do", code=code,
            reply_to=asked.reply_to,
        )  # fmt: skip

    def keeps(self, number: int, build: int, phase: str = "send", **facts: object) -> MoveStands:
        stands = MoveStands(
            move=uid(number, "e"), build=uid(build), kind="migrate", cell="c1", phase=phase, source="host-1",
            host="host-9", since=1000.0,
        )  # fmt: skip
        self.moves[stands.move] = stands = replace(stands, **facts)
        return stands

    # Queries to the cell

    async def find_builds(self, asked: FindBuilds) -> BuildsFound:
        return BuildsFound(builds=tuple(self.builds[build] for build in asked.builds if build in self.builds))

    async def find_moves(self, asked: FindMoves) -> MovesFound:
        self.looked += 1
        if self.cancelled and not self.cancels:  # the move had started before
            self.moves |= {one.move: one for one in self.started}
        found = [
            one
            for one in self.moves.values()
            if (not asked.moves or one.move in asked.moves)
            and (not asked.builds or one.build in asked.builds)
            and (not asked.host or asked.host in (one.source, one.host))
            and not (asked.under_way and one.ended)
        ]
        return MovesFound(moves=tuple(found[: asked.limit]))

    async def find_instances(self, asked: FindInstances) -> InstancesFound:
        self.listed += 1
        found = [
            Instance(
                build=build.build, status=build.status, cell="c1", host=build.host, project="p",
                flavor="small", root=root,
            )
            for build in sorted(self.builds.values(), key=lambda each: each.build)
            for root in [build.chosen.root if build.chosen else ""]
            if build.build > asked.after
            and asked.host in ("", build.host, root)
            and (not asked.statuses or build.status in asked.statuses)
        ]  # fmt: skip
        page = found[: asked.limit]
        return InstancesFound(
            instances=tuple(page), more=len(found) > len(page), last=page[-1].build if page else "",
            count=len(found) if asked.count else 0,
        )  # fmt: skip
