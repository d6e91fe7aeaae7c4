"""The moves of a plan in batches: which are requested or undone now, and what has become of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import structs

from bus.vocabulary import Id
from features.moves.core.plan_moves import DONE, MovesOfPlan, StoredMove, move_id
from features.moves.messages import MoveOfPlan, MovePlan, PlanOfMoves
from features.planning.messages import BatchedMoves, PlannedStep

SETTLE_SECONDS = 60.0  # until the former host of a moved instance must be released

G = TypeVar("G", bound=BatchedMoves)


@dataclass(frozen=True)
class BatchStep(Generic[G]):
    """The next step of a plan: its goal from now on, the moves to request now, and whether the
    plan is over.
    """

    goal: G
    new: Sequence[StoredMove] = ()
    is_over: bool = False


class BatchCourse(Generic[G]):
    """The next step of a plan. Subclasses decide what follows a batch."""

    def __init__(
        self, plan: PlanOfMoves, goal: G, moves: MovesOfPlan, held: Collection[Id], now: float
    ) -> None:
        self.goal = goal
        self.new: list[StoredMove] = []  # moves to request now
        self._plan = plan
        self._moves: Mapping[Id, MoveOfPlan] = {each.move.move: each.move for each in moves.stored}
        self._held = held
        self._now = now

    def _change(self, **fields: object) -> None:
        self.goal = structs.replace(self.goal, **fields)

    def _made(self, *, is_over: bool = False) -> BatchStep[G]:
        return BatchStep(self.goal, self.new, is_over)

    # The moves of a batch

    def _begin(self, batch: Sequence[PlannedStep]) -> None:
        """Request the moves of a batch: the first moves that are planned."""
        rest = self.goal.planned[len(batch) :]
        self._change(batch=tuple(batch), planned=rest, batches=self.goal.batches + 1)
        self._batch_is_over()

    def _batch_is_over(self) -> bool:
        """Request the moves of the batch that were not requested; return whether all have ended and their
        former hosts are released, and then add the results to those of the plan.
        """
        moves = list[tuple[PlannedStep, MoveOfPlan]]()
        for at, step in enumerate(self.goal.batch):
            id_ = move_id(self._plan.id, f"{self.goal.batches} {at}")
            if (move := self._moves.get(id_)) is None:
                self._request(step, id_, self._plan.plan, "")
            elif move.ended and (not _is_done(move) or self._has_left(step, move.ended)):
                moves.append((step, move))
        if len(moves) < len(self.goal.batch):
            return False
        self._settle(moves)
        return True

    def _settle(self, moves: Sequence[tuple[PlannedStep, MoveOfPlan]]) -> None:
        """Add the results of the batch, which has ended, to those of the plan."""
        failed = {step.build: move.problem for step, move in moves if not _is_done(move)}
        self._change(
            batch=(),
            tried=self.goal.tried + len(moves),
            failures=self.goal.failures + len(failed),
            moved=(*self.goal.moved, *(step for step, move in moves if _is_done(move))),
            failed={**self.goal.failed, **failed},
        )

    # The undoing of a plan

    def _all_are_back(self, *, stopped: bool) -> bool:
        """Move instances back one after the other, the last moved one first: later moves may use capacity
        that earlier moves freed. An instance that cannot be moved back stays. Return whether the undoing has
        ended; if `stopped`, no further one begins.
        """
        while self.goal.back:
            step = self.goal.back[0]
            id_ = move_id(self._plan.id, f"{self.goal.batches} back {step.build}")
            if (back := self._moves.get(id_)) is None:
                if stopped:
                    break
                last = max(move.ended for move in self._moves.values())
                if self._has_left(step, last):
                    self._request(step, id_, "undo", self.goal.why_undone)
                return False
            if not back.ended:
                return False
            moved = tuple([each for each in self.goal.moved if each.build != step.build])
            if _is_done(back):
                self._change(moved=moved, undone=(*self.goal.undone, step))
            else:
                why = f"it could not be moved back: {back.problem}"
                self._change(moved=(*moved, step), failed={**self.goal.failed, step.build: why})
            self._change(back=self.goal.back[1:])
        return True

    # Single moves

    def _has_left(self, step: PlannedStep, ended: float) -> bool:
        """Return whether the agent has destroyed the guest on the former host of a moved instance, or has not
        reported it in time.
        """
        return step.holder not in self._held or self._now > ended + SETTLE_SECONDS

    def _request(self, step: PlannedStep, id_: Id, plan: MovePlan, note: str) -> None:
        root = step.destination if plan == "undo" else step.source
        move = MoveOfPlan(move=id_, build=step.build, plan=self._plan.id, root=root, at=self._now)
        memory_mb = step.amounts.get("MEMORY_MB", 0)
        self.new.append(StoredMove(move, step.request(id_, plan, note), memory_mb))


def _is_done(move: MoveOfPlan) -> bool:
    return move.result == DONE
