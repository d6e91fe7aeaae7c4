"""Begins, refuses or stores moves of a batch; the decisions are made in core/move_state.py.

A move has begun when its claim is stored. If its cell has not recorded it, the order to the cell is made from
the allocations of the claim and published again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from msgspec import structs
from prometheus_client import Counter

from bus.claims import BEGUN, Held, Released, Retired
from bus.errors import Poison, Retry
from bus.messages import BuildRequested
from bus.parts import DecisionParts
from bus.vocabulary import Id
from features.moves.begun_claims import claims_of_begun
from features.moves.core import state as move_state
from features.moves.core.purpose import asked_by
from features.moves.core.rebuild_fit import unfit
from features.moves.core.start import Barred, MoveStart, no_conductor_reason, refused, undo_claim_id
from features.moves.handovers import Handovers
from features.moves.lookups import MoveLookups
from features.moves.messages import DecidedMove, MovePlaced, MoveRefused, MoveRequested
from features.moves.undoing import MoveUndoing
from scheduler_worker.extension import (
    LONGEST_PAUSE,
    SOON,
    ComeAgain,
    DeadLetterRequest,
    HostLimit,
    Order,
    RuleError,
    Scheduler,
    Verdict,
    decisions,
    postponed,
    together,
)

UNKNOWN = "unknown"  # code of refusals of moves whose build or record no cell has
MoveOutcome = move_state.MoveMessages | Retry | Poison

StoreRefusals = Callable[[Sequence[decisions.StoredRefusal]], Awaitable[None]]

PLANNED = Counter(
    "berth_scheduler_planned_moves",
    "moves of plans (make_room, rebalance, undo) and of maintenance: placed or refused, repetitions included",
    ["plan", "result"],
)


@dataclass(slots=True, eq=False)
class RequestedMove:
    """A requested move that is handled in a batch, with its current state."""

    asked: MoveRequested
    state: move_state.MoveState = field(init=False)
    limit: HostLimit | None = None  # hosts that it may not use, because they are held for other requests
    waited: float = 0.0  # how long the move has waited, if this evaluation is its last
    order: Order | None = None
    behind: bool = False  # True if no search was made, because earlier requests of its class wait

    def __post_init__(self) -> None:
        self.state = move_state.MoveState(self.asked)

    def take(self, event: move_state.MoveEvent) -> None:
        self.state = move_state.step(self.state, event)


Aside = Callable[[RequestedMove, Order], bool]  # returns whether the search for a move is skipped
Parks = Callable[[Sequence[RequestedMove]], Awaitable[None]]  # stores moves that may wait for capacity


class MovePlacing:
    """Carries out the steps of all moves of a batch together."""

    def __init__(
        self, scheduler: Scheduler, lookups: MoveLookups, handovers: Handovers, store_refusals: StoreRefusals
    ) -> None:
        self.scheduler = scheduler
        self.lookups = lookups
        self.undoing = MoveUndoing(scheduler, handovers)
        self._handovers = handovers
        self._store_refusals = store_refusals

    async def place_new(
        self, courses: Sequence[RequestedMove], aside: Aside | None = None, park: Parks | None = None
    ) -> list[MoveOutcome]:
        """Begin each new move, refuse it, or let it wait for capacity; return the result of each move.
        `aside` returns whether the search for a move is skipped, and `park` stores the moves that may wait.
        """
        new = [course for course in courses if course.state.end is None]
        for course, found in zip(new, await self.look_up(new), strict=True):
            if found is None:
                continue
            if self.scheduler.retries.retried_for(course.asked.move) >= self.scheduler.undeliverable_for:
                course.take(move_state.Stopped(found.barred, found.start))
            else:
                self._postpone(course, found.barred.why)
        await self.begin(new, aside)
        if park is not None:
            await park([course for course in new if course.state.taken is not None or course.behind])
        await self.finish(new)
        return [self._settled(course) for course in courses]

    async def look_up(self, courses: Sequence[RequestedMove]) -> list[move_state.NotYet | None]:
        """Query the cells for the instances to move, and store their states in the courses. Return a list
        with, for each move, why the state of its instance is not known yet, or None.
        """
        crossing = [course for course in courses if course.asked.to_cell]
        known = await self._handovers.known([course.asked.move for course in crossing]) if crossing else {}
        for course in crossing:  # a move between cells that has begun continues, whatever the cells report
            if (order := known.get(course.asked.move)) is not None:
                course.take(move_state.begins(order))
        open_ = [course for course in courses if course.state.end is None]
        results = await self.lookups.look_up([course.asked for course in open_])
        unknown: dict[Id, move_state.NotYet] = {}
        for course, found in zip(open_, results, strict=True):
            if isinstance(found, move_state.NotYet):
                unknown[course.asked.move] = found
            else:
                course.take(found)
        return [unknown.get(course.asked.move) for course in courses]

    async def begin(self, courses: Sequence[RequestedMove], aside: Aside | None = None) -> None:
        ready = [(course, course.state.start) for course in courses if course.state.begins]
        await self._seek([course for course, start in ready if start and start.seeks], aside)
        staying = [course for course, start in ready if start and not start.seeks]
        await self.check_rebuilds([course for course in staying if course.asked.kind == "rebuild"])
        allowed = [(course, BEGUN) for course in staying if course.state.barred is None]
        await self._fence(allowed, unplaceable=False)

    async def finish(self, courses: Sequence[RequestedMove]) -> None:
        """Store and publish refusals; publish again the messages of moves that an earlier delivery of the
        request began."""
        # Ids of refused moves are retired first, so that no concurrent delivery begins these moves.
        barred = [(course, course.state.barred.why) for course in courses if course.state.barred is not None]
        await self._fence(barred, unplaceable=True)
        await self._publish_again([course for course in courses if course.state.again])
        await self._hand_over(courses)
        refusals: list[decisions.StoredRefusal] = []
        for course in courses:
            request = course.state.start.request() if course.state.start is not None else None
            messages = [message for message in messages_of(course) if isinstance(message, MoveRefused)]
            refusals += [refusal_of(course.asked, request, message) for message in messages]
            if course.asked.plan and messages_of(course):
                PLANNED.labels(course.asked.plan, "refused" if messages else "placed").inc()
        await self._store_refusals(refusals)

    def _settled(self, course: RequestedMove) -> MoveOutcome:
        if course.state.end is None:
            self._postpone(course, "its result is unknown")
        end = course.state.end
        if isinstance(end, ComeAgain):
            return Retry(after=self.scheduler.clock.chance.uniform(end.least, end.most), why=end.why)
        if not any(isinstance(each, MoveRefused) and each.code == UNKNOWN for each in messages_of(course)):
            self.scheduler.retries.end(course.asked.move)
        # Else the time limit of a lost move has passed: copies of its request are not retried again.
        return Poison(end.why) if isinstance(end, DeadLetterRequest) else end or ()

    def _postpone(self, course: RequestedMove, why: str) -> None:
        calm = self.scheduler.retries.retried_for(course.asked.move) > LONGEST_PAUSE
        least, most = (LONGEST_PAUSE, LONGEST_PAUSE) if calm else SOON
        self.scheduler.retries.begin(course.asked.move)
        course.take(ComeAgain(least, most, why))

    async def _seek(self, courses: Sequence[RequestedMove], aside: Aside | None) -> None:
        orders = self._begun(courses)
        later = postponed(orders, self.scheduler.clock)
        trying = []
        for course, order, late in zip(courses, orders, later, strict=True):
            course.order = order
            if late is not None:
                course.take(ComeAgain(late.after, late.after, str(late)))
            elif order.verdict.invalid or aside is None or not aside(course, order):
                retried_for = max(order.times.retried_for, course.waited)
                order = structs.replace(order, times=structs.replace(order.times, retried_for=retried_for))
                trying.append((course, order if course.limit is None else order.limited(course.limit)))
        await self.place(trying)

    async def place(self, trying: Sequence[tuple[RequestedMove, Order]]) -> None:
        if trying:
            ends = await self.scheduler.place([order for _, order in trying])
            for (course, _), end in zip(trying, ends, strict=True):
                if isinstance(end, ComeAgain):
                    self.scheduler.retries.begin(course.asked.move)
                course.take(end)

    def _begun(self, courses: Sequence[RequestedMove]) -> list[Order]:
        return self.scheduler.begin_for(
            [asked_by(course.state.start) for course in courses if course.state.start]
        )

    async def _hand_over(self, courses: Sequence[RequestedMove]) -> None:
        crossing: list[tuple[RequestedMove, move_state.Handover]] = []
        for course in courses:
            start = course.state.start
            if start is None or start.booted is None:
                continue
            for placed in messages_of(course)[:1]:
                if isinstance(placed, MovePlaced) and placed.cell != start.cell:
                    crossing.append((course, move_state.handover(start, placed, start.booted)))
        if crossing:
            stored = await self._handovers.store([order for _, order in crossing])
            for course, order in crossing:
                course.take(move_state.begins(stored.get(order.placed.move, order)))

    async def check_rebuilds(self, courses: Sequence[RequestedMove]) -> None:
        """Refuse rebuilds if the new image does not fit on the instance's current host."""
        if not courses:
            return
        scheduler = self.scheduler
        starts = [course.state.start for course in courses]
        sources = [start.source for start in starts if start is not None and start.source is not None]
        if any(scheduler.source.position(source.root) is None for source in sources):
            await scheduler.source.fresh()
        now, _ = scheduler.hosts.now()
        for course, order in zip(courses, self._begun(courses), strict=True):
            if order.verdict.invalid:
                course.take(move_state.Stopped(Barred(code="unreadable", why=order.verdict.invalid)))
                continue
            [root] = order.preferred.current_roots
            try:
                whys = [
                    unfit(each, root, scheduler.source, now, scheduler.policy) for each in order.alternatives
                ]
            except RuleError as failed:
                course.take(move_state.Stopped(Barred(code=failed.code, why=str(failed))))
                continue
            if all(whys):
                host = next((source.host for source in sources if source.root == root), root)
                why = f"{host}, where it is, does not do for it: {whys[0]}"
                course.take(move_state.Stopped(Barred(code="image", why=why)))

    async def came_before(self, courses: Sequence[RequestedMove]) -> None:
        """Record in the courses which moves an earlier delivery of the request began or ended: their results
        are published again.
        """
        retire = self.scheduler.ending.retire
        results = await together([retire(course.asked.move, "", unplaceable=False) for course in courses])
        for course, result in zip(courses, results, strict=True):
            if isinstance(result, Retired):
                course.take(result)

    async def _fence(self, courses: Sequence[tuple[RequestedMove, str]], *, unplaceable: bool) -> None:
        retire = self.scheduler.ending.retire
        results = await together(
            [retire(course.asked.move, why, unplaceable=unplaceable and bool(why)) for course, why in courses]
        )
        for (course, _), result in zip(courses, results, strict=True):
            if isinstance(result, Released | Retired) or (unplaceable and isinstance(result, Held)):
                course.take(result)
            else:
                self._postpone(course, "its name is contended")

    async def _publish_again(self, courses: Sequence[RequestedMove]) -> None:
        """Publish again the orders of begun moves, unless a cell has received them."""
        await self._await_cells([course for course in courses if course.state.start is None])
        known = [(course, start) for course in courses if (start := course.state.start) is not None]
        retire = self.scheduler.ending.retire
        ids = [undo_claim_id(course.asked.move) for course, _ in known]
        undone = await together([retire(id_, "", unplaceable=False) for id_ in ids])
        going: list[tuple[RequestedMove, MoveStart]] = []
        for (course, start), result in zip(known, undone, strict=True):
            if isinstance(result, Retired):
                # The scheduler that undid this unshelve may have stopped before it marked the instance as
                # shelved.
                if course.asked.kind == "unshelve":
                    await self.undoing.park_again(course.asked.build, start.cell)
                course.take((refused(course.asked, no_conductor_reason(start.cell), "no_conductor"),))
            else:
                going.append((course, start))
        if going:
            await self._publish_claims(going)

    async def _await_cells(self, courses: Sequence[RequestedMove]) -> None:
        """Wait for the end of each begun move whose build no cell knows. If no cell records the move either,
        it was lost with commits of its cell, and is refused after a time limit.
        """
        silent = {  # moves of cells without a conductor, which may not have received the order
            course.asked.move
            for course in courses
            if (barred := course.state.barred) is not None and barred.code == "no_conductor"
        }
        moves = [course.asked.move for course in courses]
        recorded = await self.lookups.recorded([move for move in moves if move not in silent])
        for course in courses:
            move = course.asked.move
            if move in recorded:
                course.take(())
            elif (
                move in silent or self.scheduler.retries.retried_for(move) < self.scheduler.undeliverable_for
            ):
                self._postpone(course, "it has begun, but its cell does not know its build")
            else:
                why = "it has begun, but no cell has a record of it or of its instance"
                course.take((refused(course.asked, why, UNKNOWN),))

    async def _publish_claims(self, going: Sequence[tuple[RequestedMove, MoveStart]]) -> None:
        seeking = [(course, start) for course, start in going if start.seeks]
        found = await claims_of_begun(self.scheduler.placement, [start for _, start in seeking])
        found_claims = [(course, *claim) for (course, _), claim in zip(seeking, found, strict=True)]
        intact = [(course, start, held) for course, start, held in found_claims if held is not None]
        begun = self.scheduler.begin_for([asked_by(start) for _, start, _ in intact])
        publishing: list[tuple[RequestedMove, Order]] = []
        for (course, _, holding), order in zip(intact, begun, strict=True):
            if not order.attempts:  # invalid now, for example because a named host was deleted
                order = structs.replace(order, alternates=0, verdict=Verdict())
            holds = ((course.asked.move, holding),)
            publishing.append((course, structs.replace(order, instances=(), found=holds)))
        await self.place(publishing)
        lost = [(course, start) for course, start, held in found_claims if held is None]
        await self._publish_without_claim([*(pair for pair in going if not pair[1].seeks), *lost])

    async def _publish_without_claim(self, going: Sequence[tuple[RequestedMove, MoveStart]]) -> None:
        """Publish the order of each move that has no claim, or has lost it, unless a cell has recorded it.

        The cell decides how the move ends: an earlier message with its order may still be in the queue.
        """
        recorded = await self.lookups.recorded([course.asked.move for course, _ in going])
        for course, start in going:
            if course.asked.move in recorded:
                course.take(())
            else:
                course.take((start.placed(None, None) if start.seeks else start.stays(),))


def refusal_of(
    asked: MoveRequested, request: BuildRequested | None, message: MoveRefused
) -> decisions.StoredRefusal:
    """Return the decision to store about a refused move, with the request for its destination if one was
    made.
    """
    decision = structs.replace(message.decision, code=message.code)
    parts = DecisionParts(DecidedMove(request=asked))
    return decisions.StoredRefusal(asked.move, request, message.reason, decision, parts)


def messages_of(course: RequestedMove) -> move_state.MoveMessages:
    """Return the messages of a move that has ended; empty if the move waits or is retried."""
    end = course.state.end
    return () if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else end
