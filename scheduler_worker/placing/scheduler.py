"""Chooses and claims hosts and alternates for many build requests at a time.

Each request is placed by the pure state machine of core/order.py. Its effects are executed for the whole
batch: one search and one evaluation for equal requests, one claim for all, one lookup of allocations. The
choice of hosts contains no await, so no host changes during it.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

from bus.claims import ClaimAnswered, ClaimRequested
from bus.clock import Clock
from bus.decisions import RULE_ERROR
from bus.errors import AnswerRefused, Poison, Retry
from bus.messages import BuildPlaced, BuildRequested, HostFailed, HostReported
from bus.protocol import ask_each
from bus.repetitions import refused_repetition
from bus.vocabulary import Allocations, Id, Message
from scheduler_worker import dependencies, queries
from scheduler_worker.core import events
from scheduler_worker.core.choosing import Choosing, TentativeHosts, mappings_of
from scheduler_worker.core.events import Need, TakenOver
from scheduler_worker.core.narrowing import Narrowing, Remedies, claims_of
from scheduler_worker.core.order import BUILD, Order, Purpose
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking import HasReservations
from scheduler_worker.core.rule import ClaimPart
from scheduler_worker.core.step import step
from scheduler_worker.hosts import CROSSED
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.placing.named_instances import NamedInstances
from scheduler_worker.placing.orders import Asked, Orders, postponed
from scheduler_worker.placing.part import SchedulerPart
from scheduler_worker.placing.recent_flavors import RecentFlavors, demanded
from scheduler_worker.placing.suggestions import helps_of
from scheduler_worker.placing.surface import WatchReport
from scheduler_worker.refusals import count_claims

PlacingOutcome = Sequence[Message] | Retry | Poison


Parts = Callable[["Scheduler"], Sequence[SchedulerPart]]


@dataclass(slots=True, eq=False)
class _OrderInProgress:
    """An order in progress, with the next effect to execute for it, or with its result."""

    order: Order
    need: Need | None = None
    end: events.End | None = None


RULE_ERROR_SECONDS = 60.0  # between two lines of the log about one filter or weigher that fails


class RuleErrors:
    """Logs that filters and weighers failed: at most one line a minute for each of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}  # filter or weigher → time of its last line

    def log(self, text: str) -> None:
        """Log an error of a filter or weigher, unless the same one was logged recently."""
        rule, now = text.partition(" raised ")[0], self._clock.monotonic()
        if now - self._logged.get(rule, -RULE_ERROR_SECONDS) >= RULE_ERROR_SECONDS:
            self._logged[rule] = now
            dependencies.log.error("requests are refused: %s", text)


class Scheduler:
    """Places requests in batches, and holds the hosts' reports and the pending choices between batches.

    `Placing` in `surface.py` describes the methods that features may call.
    """

    def __init__(
        self,
        hosts: KnownHosts,
        orders: Orders,
        placement: queries.PlacementQueries,
        options: dependencies.SchedulerOptions,
        parts: Parts,
    ) -> None:
        self.policy = options.policy
        self.hosts = hosts
        self.clock = clock = hosts.clock
        self.source = hosts.source
        self.book = hosts.book
        self.pending = hosts.pending
        self.placement = placement
        self.undeliverable_for = options.undeliverable_for
        self.retries = dependencies.RetryTimes(clock)
        self.ending = dependencies.Ending(placement, clock, options.undeliverable_for)
        self.orders = orders
        self._patience = options.patience
        self._watches: list[WatchReport] = []
        self._tentative = TentativeHosts()
        self._rule_errors = RuleErrors(clock)
        self.flavors = RecentFlavors()
        self.demand = hosts.demand
        self.parts = tuple(parts(self))  # last, because the parts use this object
        self.narrowings: Sequence[Narrowing] = (
            NamedInstances(self.ending),
            *(narrowing for part in self.parts for narrowing in part.narrowings),
        )
        self.fallbacks = tuple([fallback for part in self.parts for fallback in part.fallbacks])

    def with_policy(self, policy: ChoicePolicy) -> "Scheduler":
        other = copy(self)
        other.policy = policy
        other.orders = Orders(self.source, self.orders.options, policy)
        return other

    async def opened(self) -> None:
        """Begin to measure the silence of agents: from now on this process receives heartbeats."""
        self.book.opened(self.clock.monotonic())

    def watch_reports(self, watch: WatchReport) -> None:
        self._watches.append(watch)

    async def handle(self, report: HostReported) -> None:
        applied = [watch(report) for watch in self._watches]
        self.book.handle(report, self.clock.monotonic())
        for notice in applied:
            notice()

    async def on_host_failed(self, failure: HostFailed) -> None:
        """Count a failed build that its host caused, unless placement has no record of the host."""
        if failure.ours and self.source.position(failure.root) is not None:
            self.book.failed(failure.cell, failure.root, self.clock.monotonic())

    async def place_many(self, requests: Sequence[BuildRequested]) -> list[PlacingOutcome]:
        """Return for each request its messages, `Retry` (deliver it again) or `Poison` (dead-letter it)."""
        orders = self.begin(requests)
        outcomes: list[PlacingOutcome | None] = list(postponed(orders, self.clock))
        new: list[tuple[int, Order]] = []
        for index, order in enumerate(orders):
            if outcomes[index] is not None:
                continue
            if (first := self.taken(order.request.request)) is None:
                new.append((index, order))
            elif (refused := refused_repetition(first, order.request)) is not None:
                outcomes[index] = (refused,)
            else:  # an earlier delivery may not have published the ends of other instances
                ended = [instance for instance in order.instances if instance not in first.instances]
                new.append((index, order.ended_before(tuple(ended))))
        ends = await self.place_new([order for _, order in new])
        for (index, order), end in zip(new, ends, strict=True):
            outcomes[index] = self.outcome(order.request.request, end)
        placed = [order for order, outcome in zip(orders, outcomes, strict=True) if _gives_hosts(outcome)]
        for fallback in self.fallbacks:
            fallback.placed(placed)
        return [() if outcome is None else outcome for outcome in outcomes]

    def taken(self, request: Id) -> BuildRequested | None:
        found = (fallback.taken(request) for fallback in self.fallbacks)
        return next((first for first in found if first is not None), None)

    def polls(self, request: BuildRequested) -> bool:
        return any(fallback.polls(request) for fallback in self.fallbacks)

    async def place_new(self, orders: Sequence[Order]) -> list[events.End]:
        answers: list[Order | TakenOver] = list(orders)
        for fallback in self.fallbacks:
            left = [answer for answer in answers if isinstance(answer, Order)]
            received = iter(await fallback.receive(left))
            answers = [next(received) if isinstance(answer, Order) else answer for answer in answers]
        ends = iter(await self.place([answer for answer in answers if isinstance(answer, Order)]))
        return [next(ends) if isinstance(answer, Order) else answer for answer in answers]

    def begin(
        self, requests: Sequence[BuildRequested], purpose: Purpose = BUILD, *, again: bool = False
    ) -> list[Order]:
        orders = self.begin_for([(request, purpose) for request in requests])
        self.flavors.see(orders)
        new = () if again else [order for order in orders if not order.times.retried_for]
        self.demand.count(demanded(new), self.clock.now())
        return orders

    def begin_for(self, asked: Sequence[Asked]) -> list[Order]:
        self.book.listened(self.clock.monotonic())
        begin, retried_for = self.orders.begin, self.retries.retried_for
        return [begin(request, retried_for(request.request), purpose) for request, purpose in asked]

    async def place(self, orders: Sequence[Order]) -> list[events.End]:
        with self._tentative.batch():
            return await self._place(orders)

    async def _place(self, orders: Sequence[Order]) -> list[events.End]:
        is_current = False
        if any(self.orders.names_unknown(order.request) for order in orders):
            await self.source.fresh()
            orders = [self.orders.again(order) for order in orders]
            is_current = True
        placed = [_OrderInProgress(order) for order in await self.prepare(orders)]
        for each in placed:
            self._take(each, events.Started())
        left = placed
        while left := [each for each in left if each.need]:
            await self._prepare_again(_needing(left, Need.HOSTS))
            is_current = await self._choose(_needing(left, Need.HOSTS), is_current)
            await self._fall_back(_needing(left, Need.FALLBACKS))
            await self._claim(_needing(left, Need.CLAIMS))
            left = [each for each in left if each.need]  # usually all orders are finished here
            await self._locate(_needing(left, Need.PLACES))
            await self._find_help(_needing(left, Need.REMEDIES))
            await self._fence(_needing(left, Need.FENCES))
            self._find_alternates(_needing(left, Need.ALTERNATES))
        return [each.end or events.Publish(()) for each in placed]

    async def _prepare_again(self, placed: Sequence[_OrderInProgress]) -> None:
        """Let narrowings read again what they need to know about orders with refused claims."""
        again = [each for each in placed if each.order.tried.rounds and not each.order.attempt]
        if again:
            prepared = await self.prepare([each.order for each in again], again=True)
            for each, order in zip(again, prepared, strict=True):
                if not order.verdict.invalid:
                    each.order = order

    def outcome(self, request: Id, end: events.End) -> PlacingOutcome:
        """Return what the worker does with a request whose order has ended: publish messages, retry, or make
        it a dead letter.
        """
        if isinstance(end, events.ComeAgain):
            self.retries.begin(request)
            return Retry(after=self.clock.chance.uniform(end.least, end.most), why=end.why)
        match end:
            case events.Publish(messages=messages):
                # The first retry stays recorded, so that a copy of this request does not wait for the whole
                # time limit again.
                return messages
            case events.DeadLetterRequest(why=why):
                self.retries.end(request)
                return Poison(why)
            case TakenOver(messages=messages):  # the feature publishes what follows
                self.retries.end(request)
                return messages

    def _take(self, progress: _OrderInProgress, event: events.Event) -> None:
        """Advance an order by an event, and carry out the effects."""
        for pick in event.picks if isinstance(event, events.Chosen) else ():
            if pick.crossed:
                CROSSED.inc()
        progress.order, effects = step(progress.order, event, self._patience)
        progress.need = None
        for effect in effects:
            match effect:  # the most frequent effects first
                case Need():
                    progress.need = effect
                case events.ReserveHost():
                    self._reserve_host(effect)
                case events.Publish():
                    progress.end = effect
                case events.ReleaseHost(pick=pick, instance=instance):
                    self.pending.release(pick)
                    self._tentative.remove(pick.scope.key, instance)
                case events.Warn(text=text):
                    dependencies.log.warning(text)
                case _:
                    progress.end = effect

    async def _choose(self, placed: Sequence[_OrderInProgress], is_current: bool) -> bool:
        """Choose hosts for orders in progress. If an order gets too few hosts and the index is not current,
        update the index, and choose again for such orders. Return whether the index is current now."""
        if not placed:
            return is_current
        short = self._find_hosts(placed)
        if short and not is_current:
            seen = self.source.seen
            await self.source.fresh()
            is_current = True
            if self.source.seen != seen:
                for each, answer in short:
                    for instance, pick in zip(each.order.instances, answer.picks, strict=False):
                        self.pending.drop(pick.reservation)
                        self._tentative.remove(pick.scope.key, instance)
                    each.order = self.orders.again(each.order)
                short = self._find_hosts([each for each, _ in short])
        for each, answer in short:
            if answer.short is not None and answer.short.code == RULE_ERROR:
                self._rule_errors.log(answer.short.refusal)
            self._take(each, answer)
        return is_current

    def _find_hosts(self, placed: Sequence[_OrderInProgress]) -> list[tuple[_OrderInProgress, events.Chosen]]:
        short: list[tuple[_OrderInProgress, events.Chosen]] = []
        for each, order in zip(placed, self.limit([each.order for each in placed]), strict=True):
            each.order = order
        answers = self.choosing().choose([each.order for each in placed])
        for each, answer in zip(placed, answers, strict=True):
            if answer.short is None:
                self._take(each, answer)
            else:
                short.append((each, answer))
        return short

    async def _fall_back(self, placed: Sequence[_OrderInProgress]) -> None:
        """Ask each fallback for the orders that those before it passed."""
        left = placed
        for fallback in self.fallbacks if placed else ():
            asked, left = left, list[_OrderInProgress]()
            answers = await fallback.handle([each.order for each in asked], self) if asked else ()
            for each, answer in zip(asked, answers, strict=True):
                match answer:
                    case Order():
                        each.order = answer
                        left.append(each)
                    case events.Chosen():
                        self._take(each, answer)
                    case TakenOver():
                        each.end, each.need = answer, None
        for each in left:
            self._take(each, events.Passed())

    def _find_alternates(self, placed: Sequence[_OrderInProgress]) -> None:
        if placed:
            choosing = self.choosing()
            for each in placed:
                self._take(each, events.AlternatesFound(choosing.alternates(each.order)))

    async def _find_help(self, placed: Sequence[_OrderInProgress]) -> None:
        if placed:
            remedies, orders = await self.remedies(), [each.order for each in placed]
            found = helps_of(orders, self.choosing(), remedies, self.clock)
            for each, helpful in zip(placed, found, strict=True):
                self._take(each, events.HelpFound(helpful))

    async def remedies(self) -> list[Remedies]:
        return [await narrowing.remedies() for narrowing in self.narrowings]

    def choosing(self, supposed: HasReservations | None = None) -> Choosing:
        tentative = self._tentative if supposed is None else self._tentative.copy()
        reservations = supposed or self.pending
        now, _ = self.hosts.now()
        return Choosing(
            self.source, self.hosts.map, now, self.policy, reservations, tentative, self.narrowings
        )

    async def resolved(self, requests: Sequence[BuildRequested]) -> Sequence[Order]:
        return await self.resolved_for([(request, BUILD) for request in requests])

    async def resolved_for(self, asked: Sequence[Asked]) -> Sequence[Order]:
        return await self.prepare([self.orders.begin(request, 0.0, purpose) for request, purpose in asked])

    async def prepare(self, orders: Sequence[Order], again: bool = False) -> Sequence[Order]:
        prepared = list(orders)
        for narrowing in self.narrowings:
            at = [
                index
                for index, order in enumerate(prepared)
                if not order.verdict.invalid and narrowing.concerns(order)
            ]
            answers = await narrowing.prepare([prepared[index] for index in at], again) if at else ()
            for index, order in zip(at, answers, strict=True):
                prepared[index] = order
        return prepared

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        limited = list(orders)
        for narrowing in self.narrowings:
            at = [index for index, order in enumerate(limited) if narrowing.concerns(order)]
            answers = narrowing.limit([limited[index] for index in at]) if at else ()
            for index, order in zip(at, answers, strict=True):
                limited[index] = order
        return limited

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        watched = [narrowing.watch(order) for narrowing in self.narrowings if narrowing.concerns(order)]
        return tuple([value for value, _ in watched]), frozenset[str]().union(
            *(hosts for _, hosts in watched)
        )

    async def _claim(self, placed: Sequence[_OrderInProgress]) -> None:
        if not placed:
            return
        taken: dict[Id, Allocations] = {}
        questions = [ClaimRequested(claims=claims_of(each.order, taken, self.narrowings)) for each in placed]
        answers = await ask_each(self.placement.claim_many, questions)
        results = [each for answer in answers if isinstance(answer, ClaimAnswered) for each in answer.results]
        count_claims(results)
        for each, answer in zip(placed, answers, strict=True):
            if isinstance(answer, AnswerRefused):
                self._take(each, events.ClaimImpossible(str(answer)))
            else:
                self._take(each, events.ClaimAnswers(tuple(answer.results)))

    def _reserve_host(self, choice: events.ReserveHost) -> None:
        self.pending.confirm_claimed(choice)
        self._tentative.add(choice.pick.scope.key, choice.instance, choice.way.root)

    async def _locate(self, placed: Sequence[_OrderInProgress]) -> None:
        """Tell orders where the consumers that held allocations before have them."""
        held = [held for each in placed for _, held in each.order.held_before()]
        providers = await self.ending.look_up(held)
        if not all(map(self.source.tree_of, providers)):  # hosts that another scheduler has seen earlier
            await self.source.fresh()
        mappings = partial(mappings_of, self.source)
        for each in placed:
            instances = [instance for instance, _ in each.order.held_before()]
            parts: dict[Id, tuple[ClaimPart, ...]] = {}
            for fallback in self.fallbacks:
                parts |= await fallback.parts_of(each.order, instances, self)
            self._take(each, events.Located(providers, mappings, parts))

    async def _fence(self, placed: Sequence[_OrderInProgress]) -> None:
        fences = [each.order.fences() for each in placed]
        for each, answer in zip(placed, await self.ending.fence(fences), strict=True):
            self._take(each, answer)


def _gives_hosts(outcome: PlacingOutcome | None) -> bool:
    return isinstance(outcome, list | tuple) and any(isinstance(each, BuildPlaced) for each in outcome)


def _needing(placed: Sequence[_OrderInProgress], need: Need) -> list[_OrderInProgress]:
    return [each for each in placed if each.need is need]
