"""Begins, refuses or stores moves of a batch; the decisions are made in core/move_state.py.

A move has begun when its claim is stored. If its cell has not recorded it, the order to the cell is made from
the allocations of the claim and published again.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from msgspec import structs
from prometheus_client import Counter

from bus.claims import Held, Released, Retired
from bus.errors import Poison, Retry
from bus.messages import BuildRequested
from bus.moves import BEGUN, MovePlaced, MoveRefused, MoveRequested
from bus.vocabulary import Id
from scheduler_worker.begun_claims import claims_of_begun
from scheduler_worker.core import move_state
from scheduler_worker.core.events import ComeAgain, DeadLetterRequest
from scheduler_worker.core.fitting import unfit
from scheduler_worker.core.move_purpose import asked_by
from scheduler_worker.core.move_start import Barred, MoveStart, no_conductor_reason, refused, undo_claim_id
from scheduler_worker.core.order import Order, Verdict
from scheduler_worker.core.placing import LONGEST_PAUSE, SOON
from scheduler_worker.core.rule import RuleError
from scheduler_worker.dependencies import together
from scheduler_worker.handovers import Handovers
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.move_undoing import MoveUndoing
from scheduler_worker.orders import postponed
from scheduler_worker.placing import Scheduler
from scheduler_worker.refusals import RefusedMoves
from scheduler_worker.waiting.hosts import without_roots

UNKNOWN = "unknown"  # code of refusals of moves whose build or record no cell has
MoveOutcome = move_state.MoveMessages | Retry | Poison

StoreRefusals = Callable[[RefusedMoves], Awaitable[None]]

PLANNED = Counter(
    "berth_scheduler_planned_moves",
    "moves of plans (make_room, rebalance, undo) and of maintenance: placed or refused, repetitions included",
    ["plan", "result"],
)


@dataclass(slots=True, eq=False)
class StartingMove:
    """A requested move that is handled in a batch, with its current state."""

    asked: MoveRequested
    state: move_state.MoveState = field(init=False)
    excluding: Collection[str] = ()  # roots of hosts reserved for other requests
    why_reserved: Callable[[str], str] = str  # returns why a host in `excluding` is reserved
    waited: float = 0.0  # how long the move has waited, if this evaluation is its last
    order: Order | None = None
    behind: bool = False  # True if no search was made, because earlier requests of its class wait

    def __post_init__(self) -> None:
        self.state = move_state.MoveState(self.asked)

    def take(self, event: move_state.MoveEvent) -> None:
        self.state = move_state.step(self.state, event)


Aside = Callable[[StartingMove, Order], bool]  # returns whether the search for a move is skipped
Parks = Callable[[Sequence[StartingMove]], Awaitable[None]]  # stores moves that may wait for capacity


class MoveStarter:
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
        self, moves: Sequence[StartingMove], aside: Aside | None = None, park: Parks | None = None
    ) -> list[MoveOutcome]:
        """Begin each new move, refuse it, or let it wait for capacity; return the result of each move.
        `aside` returns whether the search for a move is skipped, and `park` stores the moves that may wait.
        """
        new = [move for move in moves if move.state.end is None]
        for move, found in zip(new, await self.look_up(new), strict=True):
            if found is None:
                continue
            if self.scheduler.retries.retried_for(move.asked.move) >= self.scheduler.undeliverable_for:
                move.take(move_state.Stopped(found.barred, found.start))
            else:
                self._postpone(move, found.barred.why)
        await self.begin(new, aside)
        if park is not None:
            await park([move for move in new if move.state.park is not None or move.behind])
        await self.finish(new)
        return [self._settled(move) for move in moves]

    async def look_up(self, moves: Sequence[StartingMove]) -> list[move_state.NotYet | None]:
        """Query the cells for the instances to move, and store their states in the moves. Return a list
        with, for each move, why the state of its instance is not known yet, or None.
        """
        crossing = [move for move in moves if move.asked.to_cell]
        known = await self._handovers.known([move.asked.move for move in crossing]) if crossing else {}
        for move in crossing:  # a move between cells that has begun continues, whatever the cells report
            if (order := known.get(move.asked.move)) is not None:
                move.take(move_state.begins(order))
        open_ = [move for move in moves if move.state.end is None]
        results = await self.lookups.look_up([move.asked for move in open_])
        unknown: dict[Id, move_state.NotYet] = {}
        for move, found in zip(open_, results, strict=True):
            if isinstance(found, move_state.NotYet):
                unknown[move.asked.move] = found
            else:
                move.take(found)
        return [unknown.get(move.asked.move) for move in moves]

    async def begin(self, moves: Sequence[StartingMove], aside: Aside | None = None) -> None:
        ready = [(move, move.state.start) for move in moves if move.state.begins]
        await self._seek([move for move, start in ready if start and start.seeks], aside)
        staying = [move for move, start in ready if start and not start.seeks]
        await self.check_rebuilds([move for move in staying if move.asked.kind == "rebuild"])
        allowed = [(move, BEGUN) for move in staying if move.state.barred is None]
        await self._fence(allowed, unplaceable=False)

    async def finish(self, moves: Sequence[StartingMove]) -> None:
        """Store and publish refusals; publish again the messages of moves that an earlier delivery of the
        request began."""
        # Ids of refused moves are retired first, so that no concurrent delivery begins these moves.
        barred = [(move, move.state.barred.why) for move in moves if move.state.barred is not None]
        await self._fence(barred, unplaceable=True)
        await self._publish_again([move for move in moves if move.state.again])
        await self._hand_over(moves)
        refusals: list[tuple[MoveRequested, BuildRequested | None, MoveRefused]] = []
        for move in moves:
            request = move.state.start.request() if move.state.start is not None else None
            messages = [message for message in messages_of(move) if isinstance(message, MoveRefused)]
            refusals += [(move.asked, request, message) for message in messages]
            if move.asked.plan and messages_of(move):
                PLANNED.labels(move.asked.plan, "refused" if messages else "placed").inc()
        await self._store_refusals(refusals)

    def _settled(self, move: StartingMove) -> MoveOutcome:
        if move.state.end is None:
            self._postpone(move, "its result is unknown")
        end = move.state.end
        if isinstance(end, ComeAgain):
            return Retry(after=self.scheduler.clock.chance.uniform(end.least, end.most), why=end.why)
        if not any(isinstance(each, MoveRefused) and each.code == UNKNOWN for each in messages_of(move)):
            self.scheduler.retries.end(move.asked.move)
        # Else the time limit of a lost move has passed: copies of its request are not retried again.
        return Poison(end.why) if isinstance(end, DeadLetterRequest) else end or ()

    def _postpone(self, move: StartingMove, why: str) -> None:
        calm = self.scheduler.retries.retried_for(move.asked.move) > LONGEST_PAUSE
        least, most = (LONGEST_PAUSE, LONGEST_PAUSE) if calm else SOON
        self.scheduler.retries.begin(move.asked.move)
        move.take(ComeAgain(least, most, why))

    async def _seek(self, moves: Sequence[StartingMove], aside: Aside | None) -> None:
        orders = self._begun(moves)
        later = postponed(orders, self.scheduler.clock)
        trying = []
        for move, order, late in zip(moves, orders, later, strict=True):
            move.order = order
            if late is not None:
                move.take(ComeAgain(late.after, late.after, str(late)))
            elif order.verdict.invalid or aside is None or not aside(move, order):
                retried_for = max(order.times.retried_for, move.waited)
                order = structs.replace(order, times=structs.replace(order.times, retried_for=retried_for))
                trying.append((move, without_roots(order, move.excluding, move.why_reserved)))
        await self.place(trying)

    async def place(self, trying: Sequence[tuple[StartingMove, Order]]) -> None:
        if trying:
            ends = await self.scheduler.place([order for _, order in trying])
            for (move, _), end in zip(trying, ends, strict=True):
                if isinstance(end, ComeAgain):
                    self.scheduler.retries.begin(move.asked.move)
                move.take(end)

    def _begun(self, moves: Sequence[StartingMove]) -> list[Order]:
        return self.scheduler.begin_for([asked_by(move.state.start) for move in moves if move.state.start])

    async def _hand_over(self, moves: Sequence[StartingMove]) -> None:
        crossing: list[tuple[StartingMove, move_state.Handover]] = []
        for move in moves:
            start = move.state.start
            if start is None or start.booted is None:
                continue
            for placed in messages_of(move)[:1]:
                if isinstance(placed, MovePlaced) and placed.cell != start.cell:
                    crossing.append((move, move_state.handover(start, placed, start.booted)))
        if crossing:
            stored = await self._handovers.store([order for _, order in crossing])
            for move, order in crossing:
                move.take(move_state.begins(stored.get(order.placed.move, order)))

    async def check_rebuilds(self, moves: Sequence[StartingMove]) -> None:
        """Refuse rebuilds if the new image does not fit on the instance's current host."""
        if not moves:
            return
        scheduler = self.scheduler
        starts = [move.state.start for move in moves]
        sources = [start.source for start in starts if start is not None and start.source is not None]
        if any(scheduler.source.position(source.root) is None for source in sources):
            await scheduler.source.fresh()
        now, _ = scheduler.hosts_now()
        for move, order in zip(moves, self._begun(moves), strict=True):
            if order.verdict.invalid:
                move.take(move_state.Stopped(Barred(code="unreadable", why=order.verdict.invalid)))
                continue
            [root] = order.preferred.current_roots
            try:
                whys = [
                    unfit(each, root, scheduler.source, now, scheduler.policy) for each in order.alternatives
                ]
            except RuleError as failed:
                move.take(move_state.Stopped(Barred(code=failed.code, why=str(failed))))
                continue
            if all(whys):
                host = next((source.host for source in sources if source.root == root), root)
                why = f"{host}, where it is, does not do for it: {whys[0]}"
                move.take(move_state.Stopped(Barred(code="image", why=why)))

    async def came_before(self, moves: Sequence[StartingMove]) -> None:
        """Record in the moves which moves an earlier delivery of the request began or ended: their results
        are published again.
        """
        retire = self.scheduler.ending.retire
        results = await together([retire(move.asked.move, "", unplaceable=False) for move in moves])
        for move, result in zip(moves, results, strict=True):
            if isinstance(result, Retired):
                move.take(result)

    async def _fence(self, moves: Sequence[tuple[StartingMove, str]], *, unplaceable: bool) -> None:
        retire = self.scheduler.ending.retire
        results = await together(
            [retire(move.asked.move, why, unplaceable=unplaceable and bool(why)) for move, why in moves]
        )
        for (move, _), result in zip(moves, results, strict=True):
            if isinstance(result, Released | Retired) or (unplaceable and isinstance(result, Held)):
                move.take(result)
            else:
                self._postpone(move, "its name is contended")

    async def _publish_again(self, moves: Sequence[StartingMove]) -> None:
        """Publish again the orders of begun moves, unless a cell has received them."""
        await self._await_cells([move for move in moves if move.state.start is None])
        known = [(move, start) for move in moves if (start := move.state.start) is not None]
        retire = self.scheduler.ending.retire
        ids = [undo_claim_id(move.asked.move) for move, _ in known]
        undone = await together([retire(id_, "", unplaceable=False) for id_ in ids])
        going: list[tuple[StartingMove, MoveStart]] = []
        for (move, start), result in zip(known, undone, strict=True):
            if isinstance(result, Retired):
                # The scheduler that undid this unshelve may have stopped before it marked the instance as
                # shelved.
                if move.asked.kind == "unshelve":
                    await self.undoing.park_again(move.asked.build, start.cell)
                move.take((refused(move.asked, no_conductor_reason(start.cell), "no_conductor"),))
            else:
                going.append((move, start))
        if going:
            await self._publish_claims(going)

    async def _await_cells(self, moves: Sequence[StartingMove]) -> None:
        """Wait for the end of each begun move whose build no cell knows. If no cell records the move either,
        it was lost with commits of its cell, and is refused after a time limit.
        """
        silent = {  # moves of cells without a conductor, which may not have received the order
            move.asked.move
            for move in moves
            if (barred := move.state.barred) is not None and barred.code == "no_conductor"
        }
        ids = [move.asked.move for move in moves]
        recorded = await self.lookups.recorded([id_ for id_ in ids if id_ not in silent])
        for move in moves:
            id_ = move.asked.move
            if id_ in recorded:
                move.take(())
            elif id_ in silent or self.scheduler.retries.retried_for(id_) < self.scheduler.undeliverable_for:
                self._postpone(move, "it has begun, but its cell does not know its build")
            else:
                why = "it has begun, but no cell has a record of it or of its instance"
                move.take((refused(move.asked, why, UNKNOWN),))

    async def _publish_claims(self, going: Sequence[tuple[StartingMove, MoveStart]]) -> None:
        seeking = [(move, start) for move, start in going if start.seeks]
        found = await claims_of_begun(self.scheduler.placement, [start for _, start in seeking])
        found_claims = [(move, *claim) for (move, _), claim in zip(seeking, found, strict=True)]
        intact = [(move, start, held) for move, start, held in found_claims if held is not None]
        begun = self.scheduler.begin_for([asked_by(start) for _, start, _ in intact])
        publishing: list[tuple[StartingMove, Order]] = []
        for (move, _, holding), order in zip(intact, begun, strict=True):
            if not order.attempts:  # invalid now, for example because a named host was deleted
                order = structs.replace(order, alternates=0, verdict=Verdict())
            holds = ((move.asked.move, holding),)
            publishing.append((move, structs.replace(order, instances=(), found=holds)))
        await self.place(publishing)
        lost = [(move, start) for move, start, held in found_claims if held is None]
        await self._publish_without_claim([*(pair for pair in going if not pair[1].seeks), *lost])

    async def _publish_without_claim(self, going: Sequence[tuple[StartingMove, MoveStart]]) -> None:
        """Publish the order of each move that has no claim, or has lost it, unless a cell has recorded it.

        The cell decides how the move ends: an earlier message with its order may still be in the queue.
        """
        recorded = await self.lookups.recorded([move.asked.move for move, _ in going])
        for move, start in going:
            if move.asked.move in recorded:
                move.take(())
            else:
                move.take((start.placed(None, None) if start.seeks else start.stays(),))


def messages_of(move: StartingMove) -> move_state.MoveMessages:
    """Return the messages of a move that has ended; empty if the move waits or is retried."""
    end = move.state.end
    return () if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else end
