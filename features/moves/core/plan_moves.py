"""The moves of a plan: their results from the records of cells and schedulers, by instance."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from uuid import UUID, uuid5

from msgspec import structs

from bus.vocabulary import Id
from features.moves.messages import MoveOfPlan, MoveRequested, MoveStands

DONE = "done"
REFUSED = "refused"  # code of a refusal that states none
LONGEST_RESULT = 1000


@dataclass(frozen=True)
class StoredMove:
    """A requested move of a plan, with its request and the memory of the instance."""

    move: MoveOfPlan
    request: MoveRequested
    memory_mb: int = 0


@dataclass(frozen=True)
class MovesOfPlan:
    """All moves of a plan, the oldest first."""

    stored: tuple[StoredMove, ...] = ()

    @cached_property
    def in_progress(self) -> frozenset[Id]:
        """Return the builds whose move has not ended."""
        return frozenset(each.move.build for each in self.stored if not each.move.ended)

    @cached_property
    def of_builds(self) -> Mapping[Id, list[MoveOfPlan]]:
        found: dict[Id, list[MoveOfPlan]] = {}
        for each in self.stored:
            found.setdefault(each.move.build, []).append(each.move)
        return found

    def with_results(self, ended: Mapping[Id, MoveOfPlan]) -> "MovesOfPlan":
        """Return these moves with the given ones, by id, in place of those with the same id."""
        return MovesOfPlan(
            tuple([replace(each, move=ended.get(each.move.move, each.move)) for each in self.stored])
        )


def move_id(plan: Id, name: str) -> Id:
    """Return the id of a move of a plan. `name` tells the moves of the plan apart."""
    return str(uuid5(UUID(plan), name))


def result_of(move: MoveOfPlan, stands: MoveStands) -> MoveOfPlan:
    """Return a move with the end that its cell has recorded; unchanged if the move goes on."""
    if not stands.ended:
        return move
    result = DONE if stands.phase == DONE else f"{stands.phase}: {stands.reason}"
    back = stands.phase in ("reverted", "aborted")
    host = stands.at or (stands.source if back else stands.host)
    return structs.replace(move, ended=stands.ended, result=result[:LONGEST_RESULT], host=host)


def refused(move: MoveOfPlan, code: str, why: str, now: float) -> MoveOfPlan:
    """Return a move with its refusal by a scheduler."""
    return structs.replace(move, ended=now, result=why[:LONGEST_RESULT], code=code or REFUSED)


def unended(moves: Iterable[StoredMove]) -> dict[str, list[Id]]:
    """Return the ids of the moves that have not ended, by the cell that is asked for them."""
    found: dict[str, list[Id]] = {}
    for each in moves:
        if not each.move.ended:
            found.setdefault(each.request.cell, []).append(each.move.move)
    return found
