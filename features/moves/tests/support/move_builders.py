"""Builders for tests of moves: builds as cells report them, and a placement."""

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bus.claims import MIGRATION, Choice, holder_consumer
from bus.decisions import AlsoAsked, Decision, Record
from bus.errors import NoAnswer, Unroutable
from bus.messages import BuildPlaced, Selection
from bus.parts import MoveParts
from bus.queries import BuildsFound, BuildStands, Candidate, FindBuilds
from bus.reports import Inventory
from bus.requests import BuildSpec
from bus.resources import AllocationsFound, Consumer, FindAllocations, Provider
from bus.topics import Query
from features.moves.messages import FindMoves, MoveKind, MoveRequested, MovesFound, MoveStands
from tests.support.claims_in_memory import Holding
from tests.support.ids import uid
from tests.support.request_parts import with_parts
from tests.support.scheduler_builders import SMALL, FakePlacement, a_candidate

LITTLE = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}
BUILD, MOVE = uid(1000, "b"), uid(1, "e")


def a_move(number: int = 1, kind: str = "migrate", *, build: str = BUILD, **fields: Any) -> MoveRequested:
    fields = with_parts(fields, MoveParts())
    return MoveRequested(move=uid(number, "e"), build=build, kind=kind, **fields)  # type: ignore[arg-type]


def on_host(number: int, **fields: Any) -> Selection:
    one = a_candidate(number)
    choice = Choice({one.root: dict(LITTLE)})
    return Selection(root=one.root, host=one.host, agent=one.agent, choice=choice, **fields)


def a_build_that_stands(
    host: int = 1, *, build: str = BUILD, status: str = "active", attempt: int = 1,
    generation: int | None = 1, asked: AlsoAsked | None = None, cell: str = "cell1", **fields: Any,
) -> BuildStands:  # fmt: skip
    spec = BuildSpec(flavor=SMALL, project="p", user="u", name="web-1", metadata={"a": "b"})
    chosen = on_host(host)
    placed = BuildPlaced(
        build=build, request=uid(77, "a"), cell=cell, chosen=chosen, generation=1, spec=spec,
        decision=Decision(record=Record(asked=asked)),
    )  # fmt: skip
    known: dict[str, Any] = {"attempt": attempt, "generation": generation, "chosen": chosen, "spec": spec}
    return BuildStands(build=build, status=status, placed=placed, host=chosen.host, **{**known, **fields})


@dataclass
class Cells:
    stands: dict[str, dict[str, BuildStands]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    questions: list[FindBuilds] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)  # moves that the first cell has a record of
    contents: dict[str, str] = field(default_factory=dict)  # digests of their requests

    def know(self, *stands: BuildStands) -> None:
        for one in stands:
            self.stands.setdefault(one.placed.cell, {})[one.build] = one

    async def find(self, question: FindBuilds) -> BuildsFound:
        self.questions.append(question)
        if question.cell in self.silent:
            raise NoAnswer("nobody")
        if question.cell not in self.stands:
            raise Unroutable(f"no {question.cell}")
        known = self.stands[question.cell]
        return BuildsFound(builds=tuple([known[build] for build in question.builds if build in known]))

    async def find_moves(self, question: FindMoves) -> MovesFound:
        if question.cell in self.silent:
            raise NoAnswer("nobody")
        found = [move for move in question.moves if question.cell == "cell1" and move in self.recorded]
        kind: MoveKind = "migrate"
        return MovesFound(
            moves=tuple(
                MoveStands(
                    move=move,
                    build=BUILD,
                    kind=kind,
                    cell="cell1",
                    phase="done",
                    content=self.contents.get(move, ""),
                )
                for move in found
            )
        )


class MovingPlacement(FakePlacement):
    """Placement without a database that also answers about allocations, and `answers` other queries."""

    def __init__(self, *candidates: Candidate) -> None:
        super().__init__(*candidates)
        self.answers: dict[Query[Any, Any], Any] = {}
        self.metal: set[str] = set()  # roots of bare-metal nodes

    def hold(self, consumer: str, host: int, generation: int = 1) -> None:
        root = uid(host, "c")
        self.take(root, LITTLE)
        self.held[consumer] = Holding(generation, {root: dict(LITTLE)})

    def roots(self, consumer: str) -> set[str]:
        return set(self.held[consumer].allocations) if consumer in self.held else set()

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        holders = {holder_consumer(BUILD, attempt) for attempt in range(1, 9)}
        consumers = [
            Consumer(
                id=one,
                project="p",
                user="u",
                type=MIGRATION if one in holders else "INSTANCE",
                **self.held[one]._asdict(),
            )
            for one in question.consumers
            if one in self.held
        ]
        return AllocationsFound(consumers=tuple(consumers), generations={})

    def asker(self, query: Query[Any, Any], /) -> Any:
        return self.answers.get(query) or super().asker(query)

    def provider(self, one: Candidate) -> Provider:
        inventories = {name: Inventory(total=amount) for name, amount in one.capacity.items()}
        if one.root in self.metal:
            inventories = {"CUSTOM_NODE": Inventory(total=1)}
        return replace(super().provider(one), traits=one.traits, inventories=inventories)
