"""Waiting requests: stored before they are acknowledged, and evaluated when they are woken.

A result is published before the request is deleted: if the scheduler stops in between, the next owner
publishes it again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import structs

from bus.clock import Clock
from bus.context import resumed
from bus.decisions import Decision
from bus.errors import Retry, Unavailable, Unroutable
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable, HostReported
from bus.moves import MovePlaced, MoveRefused, MoveRequested
from bus.reports import HostState
from bus.sql.database import Database
from bus.sql.transaction import Transaction
from bus.vocabulary import MAX_CAUSE, Id, Message
from scheduler_worker.core.events import (
    Begun,
    ComeAgain,
    DeadLetterRequest,
    End,
    Park,
    SayAll,
)
from scheduler_worker.core.order import Order
from scheduler_worker.core.reservations import Root
from scheduler_worker.core.waiting_queue import Turn, Waiter
from scheduler_worker.core.waiting_queues import WaitingRoom
from scheduler_worker.meters import RESCUED, UNPLACEABLE, WAITING_NOW
from scheduler_worker.placing import Scheduler
from scheduler_worker.related_instances import RelatedHosts, names_other_instances
from scheduler_worker.store import decisions, parked
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting_hosts import Sight, beside, needs_of
from scheduler_worker.waiting_signal import WaitsTold

log = logging.getLogger(__name__)

TURNS = 128  # waiting requests evaluated in one step
PATIENCE = 1.0  # seconds before something is tried again that was not ours to mend
LONGEST_SLEEP = 1.0  # then expired requests are checked
SOON = 0.2
CLEARS = 0.01  # capacity that an evaluation released must wake other waiting requests: no other event will
LONGEST_PAUSE = 10.0  # between two evaluations of a request that fails repeatedly without a change

Says = Callable[..., Awaitable[None]]  # publishes messages; returns after the broker's confirm


# Why moves were refused, and what each asked of hosts, where it came so far
RefusedMoves = Sequence[tuple[MoveRequested, BuildRequested | None, MoveRefused]]


class TriesMoves(Protocol):
    """Evaluates the moves among waiting requests."""

    def try_(self, turns: Sequence[Turn]) -> None: ...

    def end_waits(self, over: Sequence[ParkedRequest]) -> None: ...

    def ending(self, kept: ParkedRequest) -> bool: ...

    def look_round(self) -> None: ...

    async def take_back(self, placed: MovePlaced) -> MoveRefused | None: ...


class Parking:
    """All waiting requests of this scheduler."""

    def __init__(self, scheduler: Scheduler, database: Database, say: Says, name: str, clock: Clock) -> None:
        self.name = name
        self.database = database
        self.rescued = 0
        self.entered = False  # whether this scheduler is registered as an owner
        self.taken_for_dead = False
        self.told_apart = 0  # how often all classes were computed again
        self.sight = Sight(scheduler.source, scheduler.policy, scheduler.hosts_now, scheduler.alternatives_of)
        self.room = WaitingRoom(self.sight)
        self.parked: dict[Id, ParkedRequest] = {}
        self.scheduler = scheduler
        self.moves: TriesMoves | None = None
        self.told = WaitsTold(scheduler.roster, say)
        self._say = say
        self._clock = clock
        self._called = asyncio.Event()
        self._regroup = False  # classes are to be computed again
        self._shared: frozenset[str] = frozenset()
        self._naming: dict[Id, ParkedRequest] = {}  # requests that name other instances or a server group
        self._tries: dict[Id, int] = {}  # how often one has come again
        self.company = RelatedHosts(scheduler.resolved)
        scheduler.parks(self.let_go, self.newcomers_beside)
        scheduler.source.watch_for_more(self._changed)
        scheduler.source.watch(self._touched)

    # Stored requests

    async def live(self, tx: Transaction) -> None:
        """Store this scheduler's heartbeat and its reserved hosts."""
        if not await parked.beat(tx, self.name, self.reserved(), self.rescued):
            self.taken_for_dead = self.entered
        self.entered = True

    def kind(self, order: Order) -> str:
        return self.sight.kind(order.request, order.alternatives)

    def enter(self, kept: ParkedRequest, mark: int | None = None) -> None:
        """Add a request to the queues of this scheduler."""
        self.room.enter(waiter_of(kept), mark)
        self.parked[kept.request] = kept
        if names_other_instances(kept.message):
            self._naming[kept.request] = kept
            self.company.stirred = True
        WAITING_NOW.set(len(self.room))
        self.told.moved()

    def begin(self, kept: ParkedRequest) -> tuple[Order, Begun]:
        """Return the order to evaluate the stored request."""
        if kept.start is not None:
            return self.scheduler.begin_moves([kept.start])[0]
        return self.scheduler.begin([kept.message])[0]

    def take_over(self, kept: ParkedRequest) -> None:
        """Add a request that another scheduler stored, or this one before a restart; its class is computed
        again.
        """
        if kept.start is not None and self.moves is None:
            return  # left to a scheduler that can read moves
        order, event = self.begin(kept)
        if event.refusal:  # it cannot be meant any more
            kept = replace(kept, until=self._clock.now(), lacks=event.refusal)
        kind = self.kind(order)
        kept = replace(kept, kind=kind, wakes=self.sight.wakes(kind))
        self.leave([kept.request])
        self.enter(kept)

    def leave(self, requests: Collection[Id]) -> None:
        for request in requests:
            self.parked.pop(request, None)
            self._naming.pop(request, None)
            self._tries.pop(request, None)
            self.room.leave(request)
        WAITING_NOW.set(len(self.room))
        if requests:
            self.told.moved()

    async def keep_decisions(self, ending: Sequence[tuple[BuildRequested, BuildUnplaceable]]) -> None:
        """Store why builds have no host, for later queries."""
        if ending:
            UNPLACEABLE.inc(len(ending))
            async with self.database.write() as tx:
                await decisions.add(tx, ending, self._clock.now())

    async def keep_refusals(self, ending: RefusedMoves) -> None:
        """Store why moves were refused, for later queries."""
        async with self.database.write() as tx:
            await decisions.add_moves(tx, ending, self._clock.now())

    # Events

    def _changed(self, roots: Sequence[str], described: Sequence[str]) -> None:
        """Placement's memory has news."""
        room = self.room
        sharing = self.scheduler.source.sharing
        if sharing or self._shared:
            shared = frozenset[str]().union(*sharing.values())
            if shared != self._shared:
                self._shared, self._regroup = shared, True
            if not sharing.keys().isdisjoint(roots):
                room.everything()
        if described:
            self._regroup = True
            room.everything()
        room.changed(roots)
        self.call()

    def _touched(self, roots: Sequence[str], described: Sequence[str]) -> None:
        """Handle changed hosts, which may have related instances."""
        if len(self.room):
            self.scheduler.pending.look(self._clock.monotonic())
        if self.company.around(roots):
            self.look_round()

    def look_round(self) -> None:
        """Check related instances and waiting moves again."""
        if self._naming:
            self.company.stirred = True
            self.call()
        if self.moves is not None:
            self.moves.look_round()

    async def handle(self, report: HostReported) -> None:
        """Handle a host's report: the host may fit now."""
        if not len(self.room):
            await self.scheduler.handle(report)
            return
        book, now = self.scheduler.book, self._clock.monotonic()
        before = {state.root: book.state(report.cell, state.root) for state in report.hosts}
        was_down = bool(book.down(report.cell, report.agent, now)) or any(
            book.why_down(report.cell, root, report.agent, now) for root in before
        )
        await self.scheduler.handle(report)
        if was_down:
            self.room.on_agent_returned()
        self.room.reported(
            [root for root, state in before.items() if not alike(state, book.state(report.cell, root))]
        )
        self.call()

    def let_go(self, root: str) -> None:
        """Handle a released reservation on this host."""
        self.room.let_go([root])
        self.call()

    def newcomers_beside(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Return the orders without hosts that are reserved for waiting requests."""
        room = self.room
        if not len(room) and not room.kept_elsewhere:
            return orders
        room.settle(self._clock.monotonic())
        now = self._clock.now()
        return [
            order
            if order.request.request in room
            else beside(order, room.barred(order.request.priority, now), self.why_reserved)
            for order in orders
        ]

    def why_reserved(self, root: Root) -> str:
        """Return for which waiting request a host is reserved, and until when."""
        kept = self.room.kept.get(root)
        key = self.room.kept_elsewhere.get(root) if kept is None else kept.key
        if key is None:
            return "offered to waiting requests now"
        *_, request = key
        waiting = self.parked.get(request)
        until = "it gets a host or expires"
        if waiting is not None:
            expires = datetime.fromtimestamp(waiting.until, UTC)
            until = f"it gets a host, at most until {expires:%Y-%m-%d %H:%M:%S} UTC"
        return f"reserved for waiting request {request} until {until}"

    def call(self) -> None:
        """Wake the task that evaluates waiting requests."""
        if len(self.room):
            self._called.set()

    # Woken requests

    async def run(self) -> None:
        """Evaluate waiting requests until cancelled."""
        while True:
            try:
                if not await self._go_on():
                    await self._sleep()
            except Unavailable as away:
                log.warning("those that wait: %s", away)
                await asyncio.sleep(PATIENCE)
            except Exception:
                log.exception("those that wait: a bug; they go on waiting")
                await asyncio.sleep(PATIENCE)

    async def _sleep(self) -> None:
        room = self.room
        pause = LONGEST_SLEEP
        if (look := room.next_look()) is not None:
            pause = min(pause, max(look - self._clock.monotonic(), 0.0))
        if room.restless:
            pause = min(pause, CLEARS)
        try:
            async with asyncio.timeout(pause if len(room) else None):
                await self._called.wait()
        except TimeoutError:
            pass

    async def _go_on(self) -> bool:
        """One round; False when there was nothing to do."""
        self._called.clear()
        if self._regroup:
            self._tell_apart_anew()
        if self.company.stirred:
            await self._look_round()
        over = self._over()
        if over:
            await self._end_waits(over)
        turns = self.room.turns(self._clock.monotonic(), TURNS)
        if turns:
            await self._try(turns)
        return bool(over or turns)

    def _over(self) -> list[ParkedRequest]:
        """Return the requests whose time has expired, without those that are ending."""
        over = [self.parked[waiter.request] for waiter in self.room.due(self._clock.now())]
        moves = self.moves
        return [kept for kept in over if kept.start is None or (moves and not moves.ending(kept))][:TURNS]

    def _tell_apart_anew(self) -> None:
        """Compute all classes and their needs again."""
        self._regroup = False
        self.told_apart += 1
        for kept in list(self.parked.values()):
            self.take_over(kept)
        self.sight.forget({kept.kind for kept in self.parked.values()})

    async def _look_round(self) -> None:
        """Wake requests whose related instances moved; end requests whose server group was deleted."""
        naming = {kept.kind: kept.message for kept in self._naming.values()}
        moved, impossible = await self.company.moved(naming)
        for kind in moved:
            self.room.on_related_hosts_changed(kind)
        for kept in [kept for kept in self._naming.values() if kept.kind in impossible]:
            if kept.start is not None:
                continue  # a move whose group was deleted continues without it after the next lookup
            self.leave([kept.request])
            self.enter(replace(kept, until=self._clock.now(), lacks=impossible[kept.kind][:MAX_CAUSE]))

    async def _try(self, turns: Sequence[Turn]) -> None:
        moves = [turn for turn in turns if self.parked[turn.waiter.request].start is not None]
        boots = [turn for turn in turns if self.parked[turn.waiter.request].start is None]
        if moves and self.moves is not None:
            self.moves.try_(moves)
        if boots:
            await self._try_boots(boots)

    async def _try_boots(self, turns: Sequence[Turn]) -> None:
        room = self.room
        seen = self.scheduler.source.seen
        calling = [self.parked[turn.waiter.request] for turn in turns]
        begun = [
            (beside(order, turn.beside, self.why_reserved), event)
            for turn, (order, event) in zip(
                turns, self.scheduler.begin([kept.message for kept in calling]), strict=True
            )
        ]
        try:
            ends = await self.scheduler.place(begun)
        except BaseException:
            for turn in turns:
                room.back(turn.waiter.request, self._clock.monotonic() + PATIENCE)
            raise
        again: list[ParkedRequest] = []
        said: list[tuple[ParkedRequest, SayAll]] = []
        for turn, kept, end in zip(turns, calling, ends, strict=True):
            if isinstance(end, SayAll):
                if turn.forgotten and any(isinstance(message, BuildPlaced) for message in end.messages):
                    self.rescue(kept)
                said.append((kept, end))
            else:
                again += self.waits_on(kept, end, seen)
        await self.lacking(again)
        await self._tell_ends(said)

    async def lacking(self, kept: Sequence[ParkedRequest]) -> None:
        """Store what the requests lack, if that changed."""
        if kept:
            async with self.database.write() as tx:
                await parked.looked_at(tx, kept)
            self.told.moved()

    def waits_on(self, kept: ParkedRequest, end: End, seen: int) -> list[ParkedRequest]:
        """Not now. What it lacks is kept where that has changed."""
        room, now = self.room, self._clock.monotonic()
        match end:
            case Park(shorts=shorts, why=why):
                # Without a shortage placement refused it, for a reason that the replica may not show yet.
                if shorts:
                    self._tries.pop(kept.request, None)
                room.back(kept.request, None if shorts else now + self._pause(kept, SOON))
                left = self.parked.get(kept.request)  # some of it, or all, may have been cancelled meanwhile
                if left is not None and shorts and why[:MAX_CAUSE] != left.lacks:
                    other = replace(left, lacks=why[:MAX_CAUSE], seen=seen, decision=decision_of(end))
                    self.parked[kept.request] = other
                    return [other]
            case ComeAgain(least=least, most=most):
                pause = self._pause(kept, self._clock.chance.uniform(least, most))
                room.back(kept.request, now + pause)
            case DeadLetterRequest(why=why):
                log.error("request %s: %s", kept.request, why)
                room.back(kept.request, now + 60.0)
            case _:
                room.back(kept.request, now + PATIENCE)
        return []

    def _pause(self, kept: ParkedRequest, first: float) -> float:
        """Twice as long each time: what changes calls it sooner."""
        tries = self._tries.get(kept.request, 0)
        self._tries[kept.request] = tries + 1
        return max(min(first * 2.0 ** min(tries, 16), LONGEST_PAUSE), first)

    def rescue(self, kept: ParkedRequest) -> None:
        self.rescued += 1
        RESCUED.inc()
        log.error(
            "request %s waited for %.0f s though there was a host: no change had told of it (kind %s)",
            *(kept.request, self._clock.now() - kept.since, kept.kind),
        )

    async def _end_waits(self, over: Sequence[ParkedRequest]) -> None:
        """End expired requests: a last evaluation, fence, then publish the reason."""
        moves = [kept for kept in over if kept.start is not None]
        if moves and self.moves is not None:
            self.moves.end_waits(moves)
        ending = [kept for kept in over if kept.start is None]
        if not ending:
            return
        begun = self.scheduler.begin([kept.message for kept in ending])
        ends = await self.scheduler.place(
            [
                (beside(order, self.room.barred(kept.priority, kept.since), self.why_reserved), event)
                for kept, (order, event) in zip(ending, begun, strict=True)
            ]
        )
        last: list[tuple[ParkedRequest, tuple[Order, Begun]]] = []
        done: list[tuple[ParkedRequest, End]] = []
        for kept, (order, _), end in zip(ending, begun, ends, strict=True):
            if not isinstance(end, Park):
                done.append((kept, end))
                continue
            last.append((kept, (given_up(order, kept, end), Begun())))
        fenced = await self.scheduler.place([one for _, one in last])
        done += [(kept, end) for (kept, _), end in zip(last, fenced, strict=True)]
        await self._tell_ends([(kept, end) for kept, end in done if isinstance(end, SayAll)])
        self.end_later([kept for kept, end in done if not isinstance(end, SayAll)])

    def end_later(self, kept: Sequence[ParkedRequest], after: float = SOON) -> None:
        """Try to end the requests again later, because the result is unknown now."""
        for request in kept:
            if request.request in self.parked:
                self.leave([request.request])
                self.enter(replace(request, until=self._clock.now() + after))

    async def _tell_ends(self, said: Sequence[tuple[ParkedRequest, SayAll]]) -> None:
        await self.keep_decisions(
            [(kept.message, unplaceable) for kept, end in said for unplaceable in ended(end.messages)]
        )
        await self.tell([(kept, end.messages) for kept, end in said])

    async def tell(self, said: Sequence[tuple[ParkedRequest, Sequence[Message]]]) -> None:
        """Publish the messages, then delete the requests. A failed publication is repeated later."""
        done: list[Id] = []
        for kept, messages in said:
            try:
                with resumed(kept.story):
                    await self._tell_all(messages)
                done.append(kept.request)
            except (Unavailable, Retry) as problem:
                log.warning("request %s: %s", kept.request, problem)
                after = problem.after if isinstance(problem, Retry) else PATIENCE
                if kept.until <= self._clock.now():
                    self.end_later([kept], after)
                else:
                    self.room.back(kept.request, self._clock.monotonic() + after)
        if done:
            async with self.database.write() as tx:
                await parked.drop(tx, done)
            self.leave(done)

    async def _tell_all(self, messages: Sequence[Message]) -> None:
        try:
            if messages:
                await self._say(*messages)
        except Unroutable:
            for message in messages:
                await self._tell_one(message)

    async def _tell_one(self, message: Message) -> None:
        try:
            await self._say(message)
        except Unroutable:
            taken_back: Message | None = None
            if isinstance(message, MovePlaced) and self.moves is not None:
                taken_back = await self.moves.take_back(message)
            elif isinstance(message, BuildPlaced):
                taken_back = await self.scheduler.ending.take_back(message)
            else:
                raise
            if taken_back is not None:
                await self._say(taken_back)

    # Reserved hosts for other schedulers

    def reserved(self) -> str:
        """Return the reserved hosts as text for other schedulers."""
        return msgspec.json.encode({root: kept.key for root, kept in self.room.kept.items()}).decode()


def given_up(order: Order, kept: ParkedRequest, last: Park) -> Order:
    """Return the order ready to end: its time has expired, and this was the last evaluation."""
    lacks = last.why if last.shorts else kept.lacks
    decision = decision_of(last) if last.shorts else kept.decision
    return structs.replace(
        order,
        reason=waited_for(kept, lacks),
        decision=msgspec.structs.replace(decision, code="waited"),
        unexplained=True,
    )


def waited_for(kept: ParkedRequest, lacks: str) -> str:
    return f"it has waited {kept.message.wait}, as it wished: {lacks}"[:MAX_CAUSE]


def waiter_of(kept: ParkedRequest) -> Waiter:
    return Waiter(kept.request, kept.kind, kept.priority, kept.since, kept.until, needs_of(kept.message))


def decision_of(end: Park) -> Decision:
    return end.shorts[0].decision(()) if end.shorts else Decision(code="refused")


def ended(verdict: object) -> list[BuildUnplaceable]:
    if not isinstance(verdict, list | tuple):
        return []
    return [one for one in verdict if isinstance(one, BuildUnplaceable)]


def alike(state: HostState | None, other: HostState | None) -> bool:
    """All that a rule may refuse a host for; its load is for weighing."""
    if state is None or other is None:
        return state is other
    return state is other or msgspec.structs.replace(state, load=0.0) == msgspec.structs.replace(
        other, load=0.0
    )
