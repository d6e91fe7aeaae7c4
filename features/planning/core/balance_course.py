"""Decides how a rebalancing goes on: which moves are requested or undone, and when the rest is planned again.

An exchange of two instances is two moves:

first ── failed ────────────────────────────────→ over: nothing has changed
   └─ done ── second ── done ───────────────────→ over: the exchange is complete
                 └─ failed ── undo of the first ── done, failed ──→ over
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from bus.vocabulary import Id
from features.moves.core.plan_moves import DONE, MovesOfPlan, StoredMove, move_id
from features.moves.messages import MoveOfPlan, MovePlan, PlanOfMoves
from features.planning.messages import BalanceMove, Balancing, PlannedStep

SETTLE_SECONDS = 60.0  # until the former host of a moved instance must be released
MOST_FIXED = 1000  # instances that a standing plan leaves alone because a move of them failed or was undone
EXCHANGE_UNDONE = "undoes half of an exchange: its other move failed"

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


@dataclass(frozen=True)
class BalanceStep:
    """The next step of a rebalancing. `planned` of a goal that `plans` is awaited from a search."""

    goal: Balancing
    new: Sequence[StoredMove] = ()
    is_over: bool = False


def next_step(
    plan: PlanOfMoves,
    goal: Balancing,
    moves: MovesOfPlan,
    held: Collection[Id],
    planned: Sequence[BalanceMove] | None,
    now: float,
    *,
    stopped: bool,
) -> BalanceStep:
    """Return the next step. `held`: holders that still hold capacity on former hosts. `planned`: the result
    of the search for the rest of the moves, if it has ended. `stopped`: begin no further batch or undoing.
    """
    return _Course(plan, goal, moves, held, now, stopped).step(planned)


class _Course:
    def __init__(
        self,
        plan: PlanOfMoves,
        goal: Balancing,
        moves: MovesOfPlan,
        held: Collection[Id],
        now: float,
        stopped: bool,
    ) -> None:
        self._plan = plan
        self._goal = goal
        self._moves: Mapping[Id, MoveOfPlan] = {each.move.move: each.move for each in moves.stored}
        self._held = held
        self._now = now
        self._stopped = stopped
        self._new: list[StoredMove] = []

    def step(self, planned: Sequence[BalanceMove] | None) -> BalanceStep:
        if self._goal.batch and not self._batch_is_over():
            return self._waits()
        if self._goal.why_undone:
            return self._undo()
        if self._stopped:
            return self._over()
        if self._goal.plans:
            if planned is None:
                return self._waits()
            self._change(planned=tuple(planned), plans=False)
        goal = self._goal
        steps = goal.tried + steps_of(goal.planned)
        if goal.failures and 2 * goal.failures >= steps:
            if not goal.moved:
                return self._over()
            why = f"undoes a rebalancing: {goal.failures} of its {steps} moves failed"
            self._change(planned=(), why_undone=why, back=goal.moved[::-1])
            return self._undo()
        if not goal.planned:
            return self._over()
        batch = independent(goal.planned, self._plan.most)
        self._change(batch=tuple(batch), planned=goal.planned[len(batch) :], batches=goal.batches + 1)
        self._batch_is_over()
        return self._waits()

    def _change(self, **fields: object) -> None:
        self._goal = structs.replace(self._goal, **fields)

    def _waits(self) -> BalanceStep:
        return BalanceStep(self._goal, self._new)

    def _over(self) -> BalanceStep:
        """End the plan; a standing plan that is not stopped only begins anew."""
        goal = self._goal
        if self._stopped or not goal.keeps_on:
            return BalanceStep(goal, is_over=True)
        undone = (step.build for step in goal.undone)
        fixed = tuple(dict.fromkeys((*goal.query.fixed, *goal.failed, *undone)))[-MOST_FIXED:]
        self._change(
            query=structs.replace(goal.query, fixed=fixed), plans=True, tried=0, failures=0, moved=(),
            undone=(), failed={}, why_undone="",
        )  # fmt: skip
        return self._waits()

    # The moves of a batch

    def _batch_is_over(self) -> bool:
        """Request the moves of the batch that are due; return whether all have ended and their former hosts
        are released, and then add the results to those of the plan.
        """
        acts = [self._next_act(at, move) for at, move in enumerate(self._goal.batch)]
        for at, (move, act) in enumerate(zip(self._goal.batch, acts, strict=True)):
            if act == "first" or act == "second":
                step = move.steps[act == "second"]
                self._request(step, self._id(at, act), "rebalance", "")
            elif act == "undo":
                self._request(move.steps[0], self._id(at, act), "undo", EXCHANGE_UNDONE)
        if any(act != "over" for act in acts):
            return False
        batch = self._goal.batch
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
        moved, undone, failed = [*self._goal.moved], [*self._goal.undone], {**self._goal.failed}
        failures = self._goal.failures
        for at, move in enumerate(self._goal.batch):
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
        tried = self._goal.tried + steps_of(self._goal.batch)
        plans = tried < self._goal.query.budget
        self._change(
            batch=(), planned=(), plans=plans, tried=tried, failures=failures, moved=tuple(moved),
            undone=tuple(undone), failed=failed,
        )  # fmt: skip

    # The undoing of a plan

    def _undo(self) -> BalanceStep:
        """Move instances back one after the other, the last moved one first: later moves may use capacity
        that earlier moves freed. An instance that cannot be moved back stays.
        """
        while self._goal.back:
            step = self._goal.back[0]
            id_ = move_id(self._plan.id, f"{self._goal.batches} back {step.build}")
            if (back := self._moves.get(id_)) is None:
                if self._stopped:
                    break
                last = max(move.ended for move in self._moves.values())
                if self._has_left(step, last):
                    self._request(step, id_, "undo", self._goal.why_undone)
                return self._waits()
            if not back.ended:
                return self._waits()
            moved = [each for each in self._goal.moved if each.build != step.build]
            undone, failed = [*self._goal.undone], {**self._goal.failed}
            self._undone(step, back, moved, undone, failed)
            self._change(back=self._goal.back[1:], moved=tuple(moved), undone=tuple(undone), failed=failed)
        return self._over()

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
        return move_id(self._plan.id, f"{self._goal.batches} {at} {part}")

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
        self._new.append(StoredMove(move, step.request(id_, plan, note), memory_mb))


def _is_done(move: MoveOfPlan | None) -> bool:
    return move is not None and move.result == DONE


def _parts(move: BalanceMove) -> Iterable[tuple[ExchangePart, PlannedStep]]:
    names: tuple[ExchangePart, ...] = ("first", "second")
    return zip(names, move.steps, strict=False)


def steps_of(moves: Iterable[BalanceMove]) -> int:
    return sum(len(move.steps) for move in moves)


def independent(waiting: Sequence[BalanceMove], most: int) -> list[BalanceMove]:
    """Return the first moves of a plan, at most `most`, that have no host in common: they can run at the same
    time.
    """
    hosts, batch = set[str](), list[BalanceMove]()
    for move in waiting[:most]:
        own = {host for step in move.steps for host in (step.source, step.destination)}
        if hosts & own:
            break
        hosts |= own
        batch.append(move)
    return batch
