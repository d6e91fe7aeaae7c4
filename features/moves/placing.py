"""Reads the instances to move, and begins, refuses or stores the moves of a batch; `core/start.py` decides.

A move has started when its claim is stored. If its cell has not recorded it, the order to the cell is made
from the allocations of the claim and published again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs
from prometheus_client import Counter

from bus.claims import STARTED, Held, Released, Retired
from bus.errors import Poison, Retry
from bus.messages import BuildRequested
from bus.parts import DecisionParts
from bus.vocabulary import Id
from features.moves.core import handover
from features.moves.core.rebuild_fit import unfit
from features.moves.core.repeated import conflict_with_record, conflict_with_request
from features.moves.core.start import (
    Barred,
    MoveEvent,
    MoveMessages,
    MoveStart,
    MoveState,
    NotYet,
    Stopped,
    asked_by,
    no_conductor_reason,
    refused,
    step_of_start,
    undo_claim_id,
)
from features.moves.handovers import Handovers
from features.moves.lookups import MoveLookups
from features.moves.messages import (
    DecidedMove,
    MoveConflict,
    MovePlaced,
    MoveRefused,
    MoveRequested,
    MoveStands,
)
from features.moves.started_claims import claims_of_started
from features.moves.undoing import MoveUndoing
from scheduler_worker.extension import (
    LONGEST_PAUSE,
    SOON,
    ComeAgain,
    DeadLetterRequest,
    Order,
    Placing,
    RuleError,
    Verdict,
    decisions,
    events,
    postponed,
    together,
)

UNKNOWN = "unknown"  # code of refusals of moves whose build or record no cell has
MoveOutcome = MoveMessages | Retry | Poison

Place = Callable[[Sequence[Order]], Awaitable[Sequence[events.End]]]
# Stores refusals, and returns the parts of those that were stored before, by id.
StoreRefusals = Callable[[Sequence[decisions.StoredRefusal]], Awaitable[Mapping[Id, DecisionParts]]]
FirstOf = Callable[[Id], MoveRequested | None]  # returns the request for a move that waits, by the move's id

PLANNED = Counter(
    "berth_scheduler_planned_moves",
    "moves of plans (make_room, rebalance, undo) and of maintenance: placed or refused, repetitions included",
    ["plan", "result"],
)


@dataclass(slots=True, eq=False)
class RequestedMove:
    """A requested move that is handled in a batch, with its current state."""

    asked: MoveRequested
    state: MoveState = field(init=False)
    # for a move that waits in another feature: returns its order with what this feature adds to it
    narrowed: Callable[[Order], Order] | None = None
    waited: float = 0.0  # how long the move has waited, if this evaluation is its last
    order: Order | None = None

    def __post_init__(self) -> None:
        self.state = MoveState(self.asked)

    def take(self, event: MoveEvent) -> None:
        """Apply an event to the start of the move."""
        self.state = step_of_start(self.state, event)

    def take_recorded(self, stands: MoveStands) -> None:
        """End a repeated request for a move that a cell has recorded: it is refused if its content differs
        from that of the first request.
        """
        other = conflict_with_record(stands, self.asked)
        self.take(() if other is None else (other,))


class MovePlacing:
    """Carries out the steps of all moves of a batch together."""

    def __init__(
        self, scheduler: Placing, lookups: MoveLookups, handovers: Handovers, store_refusals: StoreRefusals
    ) -> None:
        self.scheduler = scheduler
        self.lookups = lookups
        self.undoing = MoveUndoing(scheduler, handovers)
        self._handovers = handovers
        self._store_refusals = store_refusals
        self.firsts_of: list[FirstOf] = []  # of joins of other features that let moves wait

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveOutcome]:
        """Begin or refuse new moves, or let a fallback take them over. Return for each its messages, `Retry`
        or `Poison`.
        """
        batch = [RequestedMove(request) for request in requests]
        for requested in batch:
            if self.scheduler.taken(requested.asked.move) is not None:  # a fallback has it already
                requested.take(self._repeated_wait(requested.asked))
        new = [requested for requested in batch if requested.state.end is None]
        for requested, found in zip(new, await self.look_up(new), strict=True):
            if found is None:
                continue
            if self.scheduler.retries.retried_for(requested.asked.move) >= self.scheduler.undeliverable_for:
                requested.take(Stopped(found.barred, found.start))
            else:
                self._postpone(requested, found.barred.why)
        await self.begin(new)
        for requested in new:
            if requested.state.taken is not None:
                others = requested.state.taken.messages
                requested.take([each for each in others if isinstance(each, MoveConflict)])
        await self.finish(new)
        return [self._settled(requested) for requested in batch]

    async def look_up(self, batch: Sequence[RequestedMove]) -> list[NotYet | None]:
        """Query the cells for the instances to move, and store their states in the batch. Return a list
        with, for each move, why the state of its instance is not known yet, or None.
        """
        crossing = [requested for requested in batch if requested.asked.to_cell]
        known = (
            await self._handovers.known([requested.asked.move for requested in crossing]) if crossing else {}
        )
        for (
            requested
        ) in crossing:  # a move between cells that has started continues, whatever the cells report
            if (order := known.get(requested.asked.move)) is not None:
                other = conflict_with_record(order.placed, requested.asked)
                requested.take(handover.begins(order) if other is None else (other,))
        open_ = [requested for requested in batch if requested.state.end is None]
        results = await self.lookups.look_up([requested.asked for requested in open_])
        unknown: dict[Id, NotYet] = {}
        for requested, found in zip(open_, results, strict=True):
            if isinstance(found, NotYet):
                unknown[requested.asked.move] = found
            else:
                requested.take(found)
        seen = [requested for requested in open_ if requested.state.end == ()]
        recorded = await self.lookups.recorded([requested.asked.move for requested in seen])
        for requested in seen:
            if (stands := recorded.get(requested.asked.move)) is not None:
                requested.take_recorded(stands)
        return [unknown.get(requested.asked.move) for requested in batch]

    async def begin(self, batch: Sequence[RequestedMove]) -> None:
        """Begin the moves of a batch that can begin: seek hosts for those that need one, check the others."""
        ready = [(requested, requested.state.start) for requested in batch if requested.state.begins]
        await self._seek([requested for requested, start in ready if start and start.seeks])
        staying = [requested for requested, start in ready if start and not start.seeks]
        await self.check_rebuilds([requested for requested in staying if requested.asked.kind == "rebuild"])
        allowed = [(requested, STARTED) for requested in staying if requested.state.barred is None]
        await self._fence(allowed, unplaceable=False)

    async def finish(self, batch: Sequence[RequestedMove]) -> None:
        """Store and publish refusals; publish again the messages of moves that an earlier delivery of the
        request began."""
        # Ids of refused moves are retired first, so that no concurrent delivery begins these moves.
        barred = [
            (requested, requested.state.barred.why)
            for requested in batch
            if requested.state.barred is not None
        ]
        await self._fence(barred, unplaceable=True)
        await self._publish_again([requested for requested in batch if requested.state.again])
        await self._hand_over(batch)
        refusals: list[decisions.StoredRefusal] = []
        for requested in batch:
            request = requested.state.start.request() if requested.state.start is not None else None
            messages = [message for message in messages_of(requested) if isinstance(message, MoveRefused)]
            refusals += [refusal_of(requested.asked, request, message) for message in messages]
            if requested.asked.plan and messages_of(requested):
                PLANNED.labels(requested.asked.plan, "refused" if messages else "placed").inc()
        before = await self._store_refusals(refusals)
        for requested in batch if before else ():
            decided = before.get(requested.asked.move, DecisionParts()).get(DecidedMove)
            if decided is not None and (other := conflict_with_request(decided.request, requested.asked)):
                requested.take((other,))

    def _repeated_wait(self, asked: MoveRequested) -> MoveMessages:
        """Return the messages about a repeated request for a move that waits."""
        firsts = [first for first_of in self.firsts_of if (first := first_of(asked.move)) is not None]
        others = [conflict_with_request(first, asked) for first in firsts]
        return [other for other in others if other is not None]

    def _settled(self, requested: RequestedMove) -> MoveOutcome:
        if requested.state.end is None:
            self._postpone(requested, "its result is unknown")
        end = requested.state.end
        if isinstance(end, ComeAgain):
            return Retry(after=self.scheduler.clock.chance.uniform(end.least, end.most), why=end.why)
        if not any(isinstance(each, MoveRefused) and each.code == UNKNOWN for each in messages_of(requested)):
            self.scheduler.retries.end(requested.asked.move)
        # Else the time limit of a lost move has passed: copies of its request are not retried again.
        return Poison(end.why) if isinstance(end, DeadLetterRequest) else end or ()

    def _postpone(self, requested: RequestedMove, why: str) -> None:
        calm = self.scheduler.retries.retried_for(requested.asked.move) > LONGEST_PAUSE
        least, most = (LONGEST_PAUSE, LONGEST_PAUSE) if calm else SOON
        self.scheduler.retries.begin(requested.asked.move)
        requested.take(ComeAgain(least, most, why))

    async def _seek(self, batch: Sequence[RequestedMove]) -> None:
        orders = self._started(batch)
        later = postponed(orders, self.scheduler.clock)
        new, waiting = list[tuple[RequestedMove, Order]](), list[tuple[RequestedMove, Order]]()
        for requested, order, late in zip(batch, orders, later, strict=True):
            requested.order = order
            if late is not None:
                requested.take(ComeAgain(late.after, late.after, str(late)))
                continue
            retried_for = max(order.times.retried_for, requested.waited)
            order = structs.replace(order, times=structs.replace(order.times, retried_for=retried_for))
            if requested.narrowed is None:
                new.append((requested, order))
            else:
                waiting.append((requested, requested.narrowed(order)))
        await self.place(new, self.scheduler.place_new)
        await self.place(waiting)

    async def place(self, trying: Sequence[tuple[RequestedMove, Order]], place: Place | None = None) -> None:
        """Choose and claim the destinations of moves."""
        if trying:
            ends = await (place or self.scheduler.place)([order for _, order in trying])
            for (requested, _), end in zip(trying, ends, strict=True):
                if isinstance(end, ComeAgain):
                    self.scheduler.retries.begin(requested.asked.move)
                requested.take(end)

    def _started(self, batch: Sequence[RequestedMove]) -> list[Order]:
        return self.scheduler.begin_for(
            [asked_by(requested.state.start) for requested in batch if requested.state.start]
        )

    async def _hand_over(self, batch: Sequence[RequestedMove]) -> None:
        crossing: list[tuple[RequestedMove, handover.Handover]] = []
        for requested in batch:
            start = requested.state.start
            if start is None or start.booted is None:
                continue
            for placed in messages_of(requested)[:1]:
                if isinstance(placed, MovePlaced) and placed.cell != start.cell:
                    crossing.append((requested, handover.handover(start, placed, start.booted)))
        if crossing:
            stored = await self._handovers.store([order for _, order in crossing])
            for requested, order in crossing:
                requested.take(handover.begins(stored.get(order.placed.move, order)))

    async def check_rebuilds(self, batch: Sequence[RequestedMove]) -> None:
        """Refuse rebuilds if the new image does not fit on the instance's current host."""
        if not batch:
            return
        scheduler = self.scheduler
        starts = [requested.state.start for requested in batch]
        sources = [start.source for start in starts if start is not None and start.source is not None]
        if any(scheduler.source.position(source.root) is None for source in sources):
            await scheduler.source.fresh()
        now, _ = scheduler.hosts.now()
        for requested, order in zip(batch, self._started(batch), strict=True):
            if order.verdict.invalid:
                requested.take(Stopped(Barred(code="unreadable", why=order.verdict.invalid)))
                continue
            [root] = order.preferred.current_roots
            try:
                whys = [
                    unfit(each, root, scheduler.source, now, scheduler.policy) for each in order.alternatives
                ]
            except RuleError as failed:
                requested.take(Stopped(Barred(code=failed.code, why=str(failed))))
                continue
            if all(whys):
                host = next((source.host for source in sources if source.root == root), root)
                why = f"{host}, where it is, does not do for it: {whys[0]}"
                requested.take(Stopped(Barred(code="image", why=why)))

    async def came_before(self, batch: Sequence[RequestedMove]) -> None:
        """Record in the batch which moves an earlier delivery of the request began or ended: their results
        are published again.
        """
        retire = self.scheduler.ending.retire
        results = await together([retire(requested.asked.move, "", unplaceable=False) for requested in batch])
        for requested, result in zip(batch, results, strict=True):
            if isinstance(result, Retired):
                requested.take(result)

    async def _fence(self, batch: Sequence[tuple[RequestedMove, str]], *, unplaceable: bool) -> None:
        retire = self.scheduler.ending.retire
        results = await together(
            [
                retire(requested.asked.move, why, unplaceable=unplaceable and bool(why))
                for requested, why in batch
            ]
        )
        for (requested, _), result in zip(batch, results, strict=True):
            if isinstance(result, Released | Retired) or (unplaceable and isinstance(result, Held)):
                requested.take(result)
            else:
                self._postpone(requested, "its name is contended")

    async def _publish_again(self, batch: Sequence[RequestedMove]) -> None:
        """Publish again the orders of started moves, unless a cell has received them."""
        await self._await_cells([requested for requested in batch if requested.state.start is None])
        known = [(requested, start) for requested in batch if (start := requested.state.start) is not None]
        retire = self.scheduler.ending.retire
        ids = [undo_claim_id(requested.asked.move) for requested, _ in known]
        undone = await together([retire(id_, "", unplaceable=False) for id_ in ids])
        going: list[tuple[RequestedMove, MoveStart]] = []
        for (requested, start), result in zip(known, undone, strict=True):
            if isinstance(result, Retired):
                # The scheduler that undid this unshelve may have stopped before it marked the instance as
                # shelved.
                if requested.asked.kind == "unshelve":
                    await self.undoing.park_again(requested.asked.build, start.cell)
                requested.take((refused(requested.asked, no_conductor_reason(start.cell), "no_conductor"),))
            else:
                going.append((requested, start))
        if going:
            await self._publish_claims(going)

    async def _await_cells(self, batch: Sequence[RequestedMove]) -> None:
        """Postpone each started move whose build no cell knows. If no cell has a record of the move either, a
        fail-over of its cell's database has lost it: it is refused after a time limit.
        """
        silent = {  # moves of cells without a conductor, which may not have received the order
            requested.asked.move
            for requested in batch
            if (barred := requested.state.barred) is not None and barred.code == "no_conductor"
        }
        moves = [requested.asked.move for requested in batch]
        recorded = await self.lookups.recorded([move for move in moves if move not in silent])
        for requested in batch:
            move = requested.asked.move
            if (stands := recorded.get(move)) is not None:
                requested.take_recorded(stands)
            elif (
                move in silent or self.scheduler.retries.retried_for(move) < self.scheduler.undeliverable_for
            ):
                self._postpone(requested, "it has started, but its cell does not know its build")
            else:
                why = "it has started, but no cell has a record of it or of its instance"
                requested.take((refused(requested.asked, why, UNKNOWN),))

    async def _publish_claims(self, going: Sequence[tuple[RequestedMove, MoveStart]]) -> None:
        seeking = [(requested, start) for requested, start in going if start.seeks]
        found = await claims_of_started(self.scheduler.placement, [start for _, start in seeking])
        found_claims = [(requested, *claim) for (requested, _), claim in zip(seeking, found, strict=True)]
        intact = [(requested, start, held) for requested, start, held in found_claims if held is not None]
        started = self.scheduler.begin_for([asked_by(start) for _, start, _ in intact])
        publishing: list[tuple[RequestedMove, Order]] = []
        for (requested, _, allocation), order in zip(intact, started, strict=True):
            if not order.attempts:  # invalid now, for example because a named host was deleted
                order = structs.replace(order, alternates=0, verdict=Verdict())
            holds = ((requested.asked.move, allocation),)
            publishing.append((requested, structs.replace(order, instances=(), found=holds)))
        await self.place(publishing)
        lost = [(requested, start) for requested, start, held in found_claims if held is None]
        await self._publish_without_claim([*(pair for pair in going if not pair[1].seeks), *lost])

    async def _publish_without_claim(self, going: Sequence[tuple[RequestedMove, MoveStart]]) -> None:
        """Publish the order of each move that has no claim, or has lost it, unless a cell has recorded it.

        The cell decides how the move ends: an earlier message with its order may still be in the queue.
        """
        recorded = await self.lookups.recorded([requested.asked.move for requested, _ in going])
        for requested, start in going:
            if (stands := recorded.get(requested.asked.move)) is not None:
                requested.take_recorded(stands)
            else:
                requested.take((start.placed(None, None) if start.seeks else start.stays(),))


def refusal_of(
    asked: MoveRequested, request: BuildRequested | None, message: MoveRefused
) -> decisions.StoredRefusal:
    """Return the decision to store about a refused move, with the request for its destination if one was
    made.
    """
    decision = structs.replace(message.decision, code=message.code)
    parts = DecisionParts(DecidedMove.of(asked))
    return decisions.StoredRefusal(asked.move, request, message.reason, decision, parts)


def messages_of(requested: RequestedMove) -> MoveMessages:
    """Return the messages of a move that has ended; empty if the move waits or is retried."""
    end = requested.state.end
    return () if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else end
