"""Decides how a plan that makes room goes on: what is closed, moved, planned again, opened and undone."""

from collections.abc import Collection

from msgspec import structs

from bus.vocabulary import Id, cause_of
from features.moves.core.plan_moves import MovesOfPlan
from features.moves.messages import PlanOfMoves
from features.planning.core.batch_course import BatchCourse, BatchStep
from features.planning.messages import PlannedStep, RoomGoal, RoomPlanned

RETRIES = 5  # plans without a result before a plan is given up: a killed agent or conductor is back soon
MOST_VIA = 1000
STOPPED = "stopped"
UNRELEASED = "the agents of moved instances have not destroyed the former guests in time"
OPENED = "a target was opened by an operator"
UNRESERVED = "the capacity was not reserved in time"


def next_step(
    plan: PlanOfMoves,
    goal: RoomGoal,
    moves: MovesOfPlan,
    held: Collection[Id],
    found: RoomPlanned | None,
    now: float,
    *,
    opened: bool,
    stopped: bool,
) -> BatchStep[RoomGoal]:
    """Return the next step. Then the hosts `closing` of its goal are to be closed, or if the goal `opens`, to
    be opened. `found`: the result of the search for the rest of the moves, if it has ended. `opened`: an
    operator has opened a closed target. `stopped`: a client has stopped the plan.
    """
    return _Course(plan, goal, moves, held, now).step(found, opened, stopped)


class _Course(BatchCourse[RoomGoal]):
    def step(self, found: RoomPlanned | None, opened: bool, stopped: bool) -> BatchStep[RoomGoal]:
        searches = self.goal.searches
        if self.goal.batch and not self._is_settled():
            return self._made()
        if not self.goal.opens:
            self._go_on(found if self.goal.searches == searches else None, opened, stopped)
        if not self.goal.opens or self.goal.closing:  # a closed host takes nothing back
            return self._made()
        return self._made(is_over=self._all_are_back(stopped=stopped))

    def _is_settled(self) -> bool:
        """Return whether the batch has ended. If a move failed, plan again without its instance."""
        batch, failures = self.goal.batch, self.goal.failures
        if not self._batch_is_over():
            return False
        moved = {step.build for step in self.goal.moved}
        if any(step.build in moved and step.holder in self._held for step in batch):
            self._give_up("unreleased", UNRELEASED)
        elif self.goal.failures > failures or not self.goal.planned:
            self._plan_again()
        return True

    def _go_on(self, found: RoomPlanned | None, opened: bool, stopped: bool) -> None:
        if stopped:  # the instances stay where they are
            self._change(opens=True, planned=(), code="" if self.goal.held_until else STOPPED)
        elif opened:
            self._give_up("opened", OPENED)
        elif self.goal.held_until:
            if self._now > self.goal.held_until:
                self._give_up("unreserved", UNRESERVED)
        elif not self.goal.searches:
            self._close(self.goal.found)
            self._plan_again()
        else:
            self._move(found)

    def _move(self, found: RoomPlanned | None) -> None:
        if self.goal.plans and found is not None:
            self._take(found)
        goal = self.goal
        if goal.opens or goal.plans or not goal.planned or len(goal.closed) < len(goal.closing):
            return
        wave = goal.planned[0].wave
        self._begin([step for step in goal.planned if step.wave == wave][: self._plan.most])

    def _take(self, found: RoomPlanned) -> None:
        """Take the result of a search over."""
        goal = self.goal
        if found.code:
            if goal.retries < RETRIES:
                self._change(retries=goal.retries + 1)
                self._plan_again()
            else:
                self._give_up(found.code, found.why)
            return
        self._change(found=found, planned=_at_most_once(found), plans=False)
        is_closed = not self._close(found)
        if found.moves:
            return
        if not is_closed:
            self._plan_again()
        elif goal.reserve:
            self._change(held_until=self._now + goal.reserve)
        else:
            self._change(opens=True)

    def _close(self, found: RoomPlanned) -> bool:
        """Close the targets to which no move goes, because a closed host takes no instance. Return whether
        further ones are to be closed.
        """
        goal, awaiting = self.goal, {step.destination for step in found.moves}
        new = [each.root for each in goal.targets if each.root not in {*awaiting, *goal.closing}]
        via = sorted({*goal.via, *(step.source for step in found.moves)})[:MOST_VIA]
        self._change(closing=(*goal.closing, *new), via=tuple(via))
        return bool(new)

    def _plan_again(self) -> None:
        self._change(plans=True, planned=(), searches=self.goal.searches + 1)

    def _give_up(self, code: str, why: str) -> None:
        """Make no further move, and move the moved instances back, each to its first host."""
        goal = self.goal
        first: dict[Id, PlannedStep] = {step.build: step for step in reversed(goal.moved)}
        back = []
        for step in reversed(goal.moved) if goal.undoes else ():
            if (origin := first.pop(step.build, None)) is not None:
                back.append(structs.replace(step, source=origin.source, source_host=origin.source_host))
        why_undone = cause_of(f"undoes a plan to make room: {why}") if back else ""
        self._change(
            opens=True, planned=(), plans=False, code=code, why=why, back=tuple(back), why_undone=why_undone
        )


def _at_most_once(found: RoomPlanned) -> tuple[PlannedStep, ...]:
    """Return the moves of the first waves in which no instance moves again: its state is to be read anew."""
    moves, builds = list[PlannedStep](), set[Id]()
    for wave in sorted({step.wave for step in found.moves}):
        steps = [step for step in found.moves if step.wave == wave]
        if builds.intersection(step.build for step in steps):
            break
        builds.update(step.build for step in steps)
        moves += steps
    return tuple(moves)
