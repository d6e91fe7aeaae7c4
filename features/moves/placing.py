"""Reads the instances to move, and begins, refuses or stores the moves of a batch; `core/start.py` decides.

A move has started when its claim is stored. If its cell has not recorded it, the order to the cell is made
from the allocations of the claim and published again.
"""

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs
from msgspec.structs import replace
from prometheus_client import Counter

from bus import claims
from bus.aggregates import ZONE
from bus.candidates import CandidateSource
from bus.claims import (
    MIGRATION,
    STARTED,
    Claimed,
    Held,
    NothingHeld,
    Refused,
    Released,
    Retired,
    holder_consumer,
)
from bus.errors import AnswerRefused, NoAnswer, Poison, Retry, Unroutable
from bus.messages import BuildRequested
from bus.parts import DecisionParts, RequestParts
from bus.protocol import Ask
from bus.queries import BuildsFound, BuildStands, FindBuilds
from bus.resources import Consumer, FindAllocations, Provider
from bus.vocabulary import Contended, Id, portions
from features.moves.core import handover
from features.moves.core.rebuild_fit import unfit
from features.moves.core.repeated import conflict_with_record, conflict_with_request
from features.moves.core.start import (
    SEEKING,
    Barred,
    LookedUpMove,
    MoveEvent,
    MoveMessages,
    MoveStart,
    MoveState,
    NotYet,
    PartsOfMoves,
    SeenThrough,
    Stopped,
    asked_by,
    misread,
    move_start,
    no_conductor_reason,
    refused,
    step_of_start,
    stuck,
    undo_claim_id,
    undoing,
    unready,
)
from features.moves.handovers import Handovers
from features.moves.messages import (
    SHELVED,
    DecidedMove,
    FindMoves,
    HandoverProgress,
    MoveConflict,
    MovePlaced,
    MoveRefused,
    MoveRequested,
    MovesFound,
    MoveStands,
)
from scheduler_worker.extension import (
    LONGEST_PAUSE,
    PLACEMENT_ASKED,
    SOON,
    CellQueries,
    ComeAgain,
    DeadLetterRequest,
    Ending,
    Order,
    PlacementQueries,
    RuleError,
    Scheduler,
    Verdict,
    decisions,
    events,
    log,
    place_of,
    postponed,
    providers_of,
    together,
)

# Section: reads the instances to move: their hosts from placement, and their specs from the hosts' cells. If
# an instance changes before the claim, placement refuses the claim.


BUILDS_ASKED = 100  # build ids in one query to a cell
MOVES_ASKED = 100  # move ids in one query to a cell; the answer contains their phases
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class _Standing:
    """The answers of placement and the cells about instances to move: their cells, hosts and states."""

    cells: dict[Id, list[str]] = field(default_factory=dict)  # build → cells that may have a record of it
    held: set[Id] = field(default_factory=set)  # builds with allocations
    nobodys: set[Id] = field(default_factory=set)  # builds on hosts without an agent
    stands: dict[Id, tuple[str, BuildStands]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)  # cells that did not answer → the error text


@dataclass(frozen=True)
class MoveLookups:
    source: CandidateSource
    ending: Ending
    placement: PlacementQueries
    cells: CellQueries
    find_moves: Ask[FindMoves, MovesFound]
    options: Any = None  # of the scheduler's requests, with which features check them
    parts_of: list[PartsOfMoves] = field(default_factory=list)  # of joins of other features

    async def look_up(self, requests: Sequence[MoveRequested]) -> list[LookedUpMove]:
        wrong = [misread(request, self.options) for request in requests]
        pairs = list(zip(requests, wrong, strict=True))
        standing = await self._standing([request for request, barred in pairs if not barred])
        results: list[LookedUpMove] = [
            _judged(request, standing) if barred is None else Stopped(barred) for request, barred in pairs
        ]
        starts = [result for result in results if isinstance(result, MoveStart)]
        roots = await self._roots(starts)
        parts = [await parts_of(starts) for parts_of in self.parts_of]
        for index, start in enumerate(results):
            if isinstance(start, MoveStart):
                root = roots.get(start.source.root) if start.source else None
                added = RequestParts(*[found.get(start.asked.build) for found in parts])
                start = structs.replace(start, parts=added)
                if root is not None and start.asked.kind == "evacuate":
                    start = start.leaving_zones(self._zones(root))
                barred = stuck(start, root)
                results[index] = start if barred is None else Stopped(barred, start)
        return results

    async def builds_of(self, cell: str, moves: Sequence[Id]) -> dict[Id, Id]:
        """Return the builds of those of the given moves that a cell has recorded."""
        found = await self.find_moves(FindMoves(cell=cell, moves=tuple(moves), limit=len(moves)))
        return {stands.move: stands.build for stands in found.moves}

    async def recorded(self, moves: Sequence[Id]) -> Mapping[Id, MoveStands]:
        """Return those of the given moves that a cell which answers has recorded, by id."""
        if not moves:
            return {}
        pages = [(cell, some) for cell in self._cells() for some in portions(moves, MOVES_ASKED)]
        answers = await together([self._recorded(*page) for page in pages])
        found = [stands for answer in answers for stands in answer]
        # Of a move between cells, only the record of the destination cell has the digest of the request.
        return {stands.move: stands for stands in sorted(found, key=lambda stands: bool(stands.content))}

    async def _recorded(self, cell: str, moves: tuple[Id, ...]) -> Sequence[MoveStands]:
        try:
            return (await self.find_moves(FindMoves(cell=cell, moves=moves, limit=MOVES_ASKED))).moves
        except (Unroutable, NoAnswer, AnswerRefused):
            return ()

    async def _standing(self, requests: Sequence[MoveRequested]) -> _Standing:
        standing = _Standing()
        if not requests:
            return standing
        held = await self.ending.held(request.build for request in requests)
        providers = await self.ending.look_up(list(held.values()))
        everywhere: list[str] | None = None
        for request in requests:
            build = request.build
            if build in held:
                standing.held.add(build)
                place = place_of(held[build], providers)
                if place is None:
                    standing.nobodys.add(build)
                standing.cells[build] = [] if place is None else [place.cell]
                # After the begin of a move to this cell, the record may still be in any cell.
                if place is not None and place.cell == request.to_cell:
                    everywhere = self._cells() if everywhere is None else everywhere
                    standing.cells[build] = sorted({*everywhere, place.cell})
            elif request.cell:
                standing.cells[build] = [request.cell] if _WORD.fullmatch(request.cell) else []
            else:
                everywhere = self._cells() if everywhere is None else everywhere
                standing.cells[build] = everywhere
        await self._ask_cells(standing)
        return standing

    def _cells(self) -> list[str]:
        known = {host.cell for host in self.source.hosts()} | set(self.source.cells)
        return sorted(known - {""})

    async def _ask_cells(self, standing: _Standing) -> None:
        asked: defaultdict[str, list[Id]] = defaultdict(list)
        for build, cells in standing.cells.items():
            for cell in cells:
                asked[cell].append(build)
        questions = [(cell, some) for cell, ids in asked.items() for some in portions(ids, BUILDS_ASKED)]
        answers = await together([self._ask_cell(*question) for question in questions])
        for (cell, _), answer in zip(questions, answers, strict=True):
            if isinstance(answer, str):
                standing.silent[cell] = answer
                continue
            for stands in answer.builds:
                standing.stands[stands.build] = cell, stands

    async def _ask_cell(self, cell: str, builds: tuple[Id, ...]) -> BuildsFound | str:
        try:
            return await self.cells.builds(FindBuilds(cell=cell, builds=builds))
        except Unroutable:
            return f"cell {cell!r}: no conductor answers there"
        except (NoAnswer, AnswerRefused) as problem:
            return f"cell {cell!r}: its conductor does not answer: {problem}"

    async def _roots(self, starts: Sequence[MoveStart]) -> Mapping[str, Provider]:
        ids = dict.fromkeys(start.source.root for start in starts if start.source is not None)
        return await providers_of(self.placement, ids, ("inventories", "traits", "aggregates", "owner"))

    def _zones(self, root: Provider) -> set[str]:
        """Return the zones of a host: of its report, and of its aggregates."""
        aggregates = self.source.aggregates
        metadata = [aggregates[uuid].metadata for uuid in root.aggregates if uuid in aggregates]
        return {root.zone, *(each[ZONE] for each in metadata if ZONE in each)}


def _judged(asked: MoveRequested, standing: _Standing) -> LookedUpMove:
    build = asked.build
    if build not in standing.stands:
        return _unknown(build, standing)
    cell, stands = standing.stands[build]
    if stands.move == asked.move:
        return SeenThrough()
    start = move_start(asked, stands, cell)
    barred = unready(asked, stands)
    if barred is None and not start.is_complete:
        barred = Barred(code="no_conductor", why=f"cell {cell!r}: its conductor does not support moves yet")
    if barred is not None:
        return Stopped(barred, start)
    return start


def _unknown(build: Id, standing: _Standing) -> LookedUpMove:
    cells = standing.cells[build]
    silent = [standing.silent[cell] for cell in cells if cell in standing.silent]
    if silent:
        return NotYet(Barred(code="no_conductor", why="; ".join(silent[:3])))
    if build in standing.nobodys:
        why = "it holds resources where no agent builds: no build of ours"
        return Stopped(Barred(code="unknown", why=why))
    if build in standing.held:  # the message that the build was placed may not have reached the cell yet
        return NotYet(Barred(code="unknown", why=f"cell {cells[0]!r} does not know of this build"))
    where = f"cell {cells[0]!r} does not know" if len(cells) == 1 else "no cell knows"
    return Stopped(Barred(code="unknown", why=f"{where} of such a build, and it holds nothing"))


# Section: finds the claims of moves that began at an earlier delivery of their request.
#
# A scheduler can stop after it has claimed a move's destination and before it has published the move's order.
# Until the request is delivered again, the cell does not know of the move, and may rebuild, shelve or delete
# the instance.


REBUILDS = 16  # earlier attempt numbers of a guest that may have been current when the move was claimed

# the move, with the guest's attempt number at the time of the claim; the claim's allocations or None
StartedClaim = tuple[MoveStart, Held | None]


async def claims_of_started(placement: PlacementQueries, starts: Sequence[MoveStart]) -> list[StartedClaim]:
    """Return a pair for each move that an earlier delivery began: its `MoveStart` with the guest's attempt at
    the time of the claim, and the claim's allocations, or None if they were released or a later move holds
    them.
    """
    names = dict.fromkeys(id_ for start in starts for id_ in (start.asked.build, *_holders(start).values()))
    found: dict[Id, Consumer] = {}
    for some in portions(names, PLACEMENT_ASKED):
        answer = await placement.allocations(FindAllocations(consumers=some))
        found |= {consumer.id: consumer for consumer in answer.consumers}
    return [_claim_of(start, found) for start in starts]


def _holders(start: MoveStart) -> dict[int, Id]:
    """Return the consumers that may hold the allocations of a move's source: attempt → id, newest first. Any
    of these attempts may have been the guest's when the move began.
    """
    attempts: Iterable[int] = range(start.attempt, max(start.attempt - REBUILDS, 0), -1)
    return {attempt: holder_consumer(start.asked.build, attempt) for attempt in attempts}


def _claim_of(start: MoveStart, found: dict[Id, Consumer]) -> StartedClaim:
    build = found.get(start.asked.build)
    held = None if build is None else Held(generation=build.generation, allocations=build.allocations)
    if start.keep is None or start.keep in found:
        return start, held
    # The cell knows this generation, so the present allocations are not those of the move's claim.
    if build is not None and start.generation == build.generation:
        return start, None
    for attempt, holder in _holders(start).items():
        if holder in found and found[holder].type == MIGRATION:
            return replace(start, attempt=attempt), held
    return start, None


# Section: undoes moves that have started although their cell has no conductor to carry them out.


class MoveUndoing:
    """Releases the claims of moves whose orders no conductor receives, and makes their refusals."""

    def __init__(self, scheduler: Scheduler, handovers: Handovers) -> None:
        self._scheduler = scheduler
        self._handovers = handovers

    async def undo_placed(self, placed: MovePlaced | HandoverProgress) -> MoveRefused | None:
        """Raise `Retry` for a started move if its cell has no conductor, until a time limit. Then undo the
        move and return its refusal; return None, and undo nothing, if the cell continues the move.
        """
        move, why, reply_to = placed.move, no_conductor_reason(placed.cell), placed.reply_to
        asked = MoveRequested(move=move, build=placed.build, kind=placed.kind, reply_to=reply_to)
        refusal = refused(asked, why, "no_conductor", placed.decision)
        if isinstance(placed, HandoverProgress):
            return refusal if await self._handovers.on_unroutable(placed) else None
        self._scheduler.ending.wait_for_consumer(placed.move, placed.cell)
        match await self._undo(placed):
            case Released() | Claimed() | Retired():
                log.warning("move %s: %s", placed.move, why)
                return refusal
            case Held():
                return None  # the cell has received the order, and continues the move
            case Refused(refusals=refusals) if any(isinstance(refusal, NothingHeld) for refusal in refusals):
                return None
            case _:
                raise Retry(after=LONGEST_PAUSE, why=f"the claim of {placed.build} is contended")

    async def _undo(self, placed: MovePlaced) -> claims.ClaimResult | claims.ReleaseResult:
        if placed.kind not in SEEKING or placed.generation is None:  # the move made no claim
            return await self._scheduler.ending.retire(
                undo_claim_id(placed.move), no_conductor_reason(placed.cell)
            )
        claim = undoing(placed, placed.generation)
        [answer] = await self._scheduler.placement.claim_many([claims.ClaimRequested(claims=(claim,))])
        result = answer.results[0]
        if placed.kind == "unshelve" and isinstance(result, Claimed | Retired):
            await self.park_again(placed.build, placed.cell)
        return result

    async def park_again(self, build: Id, cell: str) -> None:
        """Mark an instance as shelved in placement after a refused unshelve, unless it has a host by now."""
        question = claims.ReleaseRequested(
            consumer=build, generation=None, retire=SHELVED, cell=cell, revivable=True
        )
        if isinstance((await self._scheduler.placement.release(question)).result, Contended):
            raise Retry(after=LONGEST_PAUSE, why=f"the claim of {build} is contended")


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
        self, scheduler: Scheduler, lookups: MoveLookups, handovers: Handovers, store_refusals: StoreRefusals
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
    parts = DecisionParts(DecidedMove(request=asked))
    return decisions.StoredRefusal(asked.move, request, message.reason, decision, parts)


def messages_of(requested: RequestedMove) -> MoveMessages:
    """Return the messages of a move that has ended; empty if the move waits or is retried."""
    end = requested.state.end
    return () if end is None or isinstance(end, ComeAgain | DeadLetterRequest) else end
