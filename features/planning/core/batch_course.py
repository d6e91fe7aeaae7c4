"""The moves of a plan in batches: which are requested or undone now, and what has become of them.

An exchange of two instances is two moves:

first ── failed ────────────────────────────────→ over: nothing has changed
   └─ done ── second ── done ───────────────────→ over: the exchange is complete
                 └─ failed ── undo of the first ── done, failed ──→ over
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

from msgspec import structs

from bus.vocabulary import Id
from features.moves.core.plan_moves import DONE, MovesOfPlan, StoredMove, move_id
from features.moves.messages import MoveOfPlan, MovePlan, PlanOfMoves
from features.planning.messages import BalanceMove, BatchedMoves, PlannedStep

SETTLE_SECONDS = 60.0  # until the former host of a moved instance must be released
EXCHANGE_UNDONE = "undoes half of an exchange: its other move failed"

G = TypeVar("G", bound=BatchedMoves)

# none: not requested; failed: refused, or ended without effect
MoveResult = Literal["none", "in progress", "done", "failed"]
ExchangePart = Literal["first", "second", "undo"]
ExchangeAct = ExchangePart | Literal["wait", "over"]


def next_act(
    first: MoveResult, second: MoveResult, undo: MoveResult, *, single: bool, released: bool
) -> ExchangeAct:
    """Return which move is to be requested now, if any. `single`: there is no second move. `released`: the
    first instance has left its former host, so that its capacity there is free.
    """
    if first != "done" or single:
        return _act(first, "first")
    if second in ("none", "failed") and undo == "none" and not released:
        return "wait"
    return _act(second, "second") if second != "failed" else _act(undo, "undo")


def _act(result: MoveResult, part: ExchangePart) -> ExchangeAct:
    return part if result == "none" else "wait" if result == "in progress" else "over"


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

    # The moves of a batch

    def _batch_is_over(self) -> bool:
        """Request the moves of the batch that are due; return whether all have ended and their former hosts
        are released, and then add the results to those of the plan.
        """
        acts = [self._next_act(at, move) for at, move in enumerate(self.goal.batch)]
        for at, (move, act) in enumerate(zip(self.goal.batch, acts, strict=True)):
            if act == "first" or act == "second":
                step = move.steps[act == "second"]
                self._request(step, self._id(at, act), self._plan.plan, "")
            elif act == "undo":
                self._request(move.steps[0], self._id(at, act), "undo", EXCHANGE_UNDONE)
        if any(act != "over" for act in acts):
            return False
        batch = self.goal.batch
        former = [(self._id(at, part), step) for at, each in enumerate(batch) for part, step in _parts(each)]
        if not all(self._is_released(step, self._moves.get(id_)) for id_, step in former):
            return False
        self._settle()
        return True

    def _next_act(self, at: int, move: BalanceMove) -> ExchangeAct:
        ids = [self._id(at, part) for part in ("first", "second", "undo")]
        first, second, undo = map(self._result, ids)
        released = self._is_released(move.steps[0], self._moves.get(ids[0]))
        return next_act(first, second, undo, single=len(move.steps) == 1, released=released)

    def _settle(self) -> None:
        """Add the results of the batch, which has ended, to those of the plan."""
        moved, undone, failed = [*self.goal.moved], [*self.goal.undone], {**self.goal.failed}
        failures = self.goal.failures
        for at, move in enumerate(self.goal.batch):
            results = {part: self._moves.get(self._id(at, part)) for part in ("first", "second", "undo")}
            done = [step for part, step in _parts(move) if _is_done(results[part])]
            failures += len(move.steps) if len(done) < len(move.steps) else 0
            for part, step in _parts(move):
                if (result := results[part]) is not None and not _is_done(result):
                    failed[step.build] = result.problem
            if (back := results["undo"]) is not None:
                done.remove(move.steps[0])
                self._undone(move.steps[0], back, moved, undone, failed)
            moved += done
        tried = self.goal.tried + steps_of(self.goal.batch)
        self._change(
            batch=(), tried=tried, failures=failures, moved=tuple(moved), undone=tuple(undone), failed=failed
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
            moved = [each for each in self.goal.moved if each.build != step.build]
            undone, failed = [*self.goal.undone], {**self.goal.failed}
            self._undone(step, back, moved, undone, failed)
            self._change(back=self.goal.back[1:], moved=tuple(moved), undone=tuple(undone), failed=failed)
        return True

    def _undone(
        self,
        step: PlannedStep,
        back: MoveOfPlan,
        moved: list[PlannedStep],
        undone: list[PlannedStep],
        failed: dict[Id, str],
    ) -> None:
        if _is_done(back):
            undone.append(step)
        else:
            moved.append(step)
            failed[step.build] = f"it could not be moved back: {back.problem}"

    # Single moves

    def _id(self, at: int, part: ExchangePart) -> Id:
        return move_id(self._plan.id, f"{self.goal.batches} {at} {part}")

    def _result(self, id_: Id) -> MoveResult:
        move = self._moves.get(id_)
        if move is None:
            return "none"
        return "in progress" if not move.ended else "done" if _is_done(move) else "failed"

    def _is_released(self, step: PlannedStep, moved: MoveOfPlan | None) -> bool:
        """Return whether the capacity on the former host is free, or there is nothing to wait for."""
        return moved is None or not _is_done(moved) or self._has_left(step, moved.ended)

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


def _is_done(move: MoveOfPlan | None) -> bool:
    return move is not None and move.result == DONE


def _parts(move: BalanceMove) -> Iterable[tuple[ExchangePart, PlannedStep]]:
    names: tuple[ExchangePart, ...] = ("first", "second")
    return zip(names, move.steps, strict=False)


def counts_of(goal: BatchedMoves) -> dict[str, Any]:
    """Return what the record of the plan says of its moves, by the fields of PlanStands."""
    total = goal.tried + steps_of((*goal.batch, *goal.planned))
    return {"total": total, "moved": len(goal.moved), "stay": goal.failed}


def steps_of(moves: Iterable[BalanceMove]) -> int:
    return sum(len(move.steps) for move in moves)
