"""Chooses and claims hosts and alternates for many build requests at a time.

Each request is placed by the pure state machine of core/placing.py. Its effects are executed for the whole
batch: one search and one evaluation for equal requests, one claim for all, one lookup of allocations. The
choice of hosts contains no await, so no host changes during it.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

from bus.candidates import Bools, CandidateSource
from bus.claims import ClaimAnswered, ClaimRequested
from bus.clock import Clock
from bus.decisions import RULE_ERROR
from bus.errors import AnswerRefused, Poison, Retry
from bus.messages import BuildRequested, HostFailed, HostReported
from bus.vocabulary import Id, Message
from scheduler_worker import dependencies, queries
from scheduler_worker.agents import CROSSED, Roster
from scheduler_worker.core import events
from scheduler_worker.core.build_purpose import BUILD
from scheduler_worker.core.choosing import Choosing, Joined
from scheduler_worker.core.drawing import SlotAssignments
from scheduler_worker.core.events import Need
from scheduler_worker.core.host_map import HostMap, HostsNow
from scheduler_worker.core.order import Order, claims_of
from scheduler_worker.core.placing import step
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.roles import group_id
from scheduler_worker.core.rule import Alternative
from scheduler_worker.core.scale import HasReservations
from scheduler_worker.drawn_reservations import DrawnReservations
from scheduler_worker.extension import Purpose
from scheduler_worker.help_search import helps_of
from scheduler_worker.hosts import HostBook
from scheduler_worker.orders import Orders, Preempting, Resolving, postponed
from scheduler_worker.pending_choices import PendingChoices
from scheduler_worker.refusals import count_claims
from scheduler_worker.request_sizes import RecentFlavors

Narrow = Callable[[Sequence[Order]], Sequence[Order]]
Asked = tuple[BuildRequested, Purpose]
PlacingOutcome = Sequence[Message] | Retry | Poison


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
        rule, now = text.partition(" raised ")[0], self._clock.monotonic()
        if now - self._logged.get(rule, -RULE_ERROR_SECONDS) >= RULE_ERROR_SECONDS:
            self._logged[rule] = now
            dependencies.log.error("requests are refused: %s", text)


class Scheduler:
    """Places requests in batches, and holds the hosts' reports and the pending choices between batches."""

    def __init__(
        self,
        source: CandidateSource,
        placement: queries.PlacementQueries,
        clock: Clock,
        options: dependencies.SchedulerOptions,
    ) -> None:
        self.policy = options.policy
        self.clock = clock
        self.source = source
        self.placement = placement
        self.held_share = options.held_share
        self.undeliverable_for = options.undeliverable_for
        self.book = HostBook(clock.monotonic(), options.grace)
        self.pending = PendingChoices(source, self.book, clock)
        self.retries = dependencies.RetryTimes(self.clock)
        self.ending = dependencies.Ending(placement, self.clock, options.undeliverable_for)
        self._resolving = Resolving(placement, self.ending)
        self.drawn = DrawnReservations(placement.reservations, source, clock)
        self._orders = Orders(source, options.requests, self.policy).follow()
        self._hosts = HostMap(source, self.policy.cells)
        self.roster = Roster(self.clock)
        self._patience = options.patience
        self.narrow: Narrow = lambda orders: orders
        self.preemption: Preempting | None = None
        self._joined = Joined()
        self._rule_errors = RuleErrors(clock)
        self.flavors = RecentFlavors()

    def leave_out_reserved(self, released: Callable[[str], None], narrow: Narrow) -> None:
        """Set a function that excludes reserved hosts from orders, and a callback for released capacity."""
        self.pending.on_released = released
        self.narrow = narrow

    def with_policy(self, policy: ChoicePolicy) -> "Scheduler":
        """Return a scheduler with another policy and the same hosts and reservations, for one question."""
        other = copy(self)
        other.policy = policy
        other._orders = Orders(self.source, self._orders.options, policy)
        return other

    def alternatives_of(self, request: BuildRequested) -> Sequence[Alternative]:
        """Return the flavors and page sizes to try for a request, best first; empty if it is invalid."""
        return self._orders.begin(request, 0.0).alternatives

    def hosts_now(self) -> tuple[HostsNow, Bools]:
        """Return the reported state of all hosts, and a mask of the hosts that have an agent."""
        now = self.clock.monotonic()
        self.pending.expire()
        self._hosts.update()
        self._hosts.share(self.roster.live, self.roster.name)
        return self.book.snapshot(self.source, now), self._hosts.served

    async def opened(self) -> None:
        self.book.opened(self.clock.monotonic())

    async def handle(self, report: HostReported) -> None:
        self.book.handle(report, self.clock.monotonic())

    async def on_host_failed(self, failure: HostFailed) -> None:
        """Count a failed build that its host caused, unless placement has no record of the host."""
        if failure.ours and self.source.position(failure.root) is not None:
            self.book.failed(failure.cell, failure.root, self.clock.monotonic())

    async def place_many(self, requests: Sequence[BuildRequested]) -> list[PlacingOutcome]:
        """Return for each request its messages, `Retry` (deliver it again) or `Poison` (dead-letter it)."""
        orders = self.begin(requests)
        later = postponed(orders, self.clock)
        ends = iter(
            await self.place([order for order, late in zip(orders, later, strict=True) if late is None])
        )
        return [
            self.outcome(order.request.request, next(ends)) if late is None else late
            for order, late in zip(orders, later, strict=True)
        ]

    def begin(self, requests: Sequence[BuildRequested], purpose: Purpose = BUILD) -> list[Order]:
        """Return the orders of requests for new instances."""
        orders = self.begin_for([(request, purpose) for request in requests])
        self.flavors.see(orders)
        return orders if self.preemption is None else [*self.preemption.permitted(orders)]

    def begin_for(self, asked: Sequence[Asked]) -> list[Order]:
        """Return the orders of requests with purposes of features."""
        self.book.listened(self.clock.monotonic())
        begin, retried_for = self._orders.begin, self.retries.retried_for
        return [begin(request, retried_for(request.request), purpose) for request, purpose in asked]

    async def place(self, orders: Sequence[Order]) -> list[events.End]:
        """Place orders, and return their results in the same sequence. An order fails for lack of a host only
        after a search in an index that was updated during this call."""
        batch = self._joined.begin()
        try:
            return await self._place(orders)
        finally:
            self._joined.end(batch)

    async def _place(self, orders: Sequence[Order]) -> list[events.End]:
        is_current = False
        if any(self._orders.names_unknown(order.request) for order in orders):
            await self.source.fresh()
            orders = [self._orders.again(order) for order in orders]
            is_current = True
        placed = [_OrderInProgress(order) for order in await self.resolve(orders)]
        for each in placed:
            self._take(each, events.Begun())
        left = placed
        while left := [each for each in left if each.need]:
            await self._read_slots(_needing(left, Need.HOSTS))
            is_current = await self._choose(_needing(left, Need.HOSTS), is_current)
            await self._preempt(_needing(left, Need.VICTIMS))
            await self._claim(_needing(left, Need.CLAIMS))
            left = [each for each in left if each.need]  # usually all orders are finished here
            await self._locate(_needing(left, Need.PLACES))
            await self._find_help(_needing(left, Need.REMEDIES))
            await self._fence(_needing(left, Need.FENCES))
            self._find_alternates(_needing(left, Need.ALTERNATES))
        return [each.end or events.Publish(()) for each in placed]

    async def _read_slots(self, placed: Sequence[_OrderInProgress]) -> None:
        """Read the slots of reservations again for orders with refused claims."""
        again = [each for each in placed if each.order.has_lost_a_slot]
        if again:
            resolved = await self.drawn.resolve([each.order for each in again])
            for each, order in zip(again, resolved, strict=True):
                each.order = order

    def outcome(self, request: Id, end: events.End) -> PlacingOutcome:
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
            case events.Park(why=why):
                self.retries.end(request)
                return Retry(after=1.0, why=why)

    def _take(self, progress: _OrderInProgress, event: events.Event) -> None:
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
                    self._reserve_host(progress.order, effect)
                case events.Publish():
                    progress.end = effect
                case events.ReleaseHost(pick=pick, instance=instance):
                    self.pending.drop(pick.reservation)
                    self.pending.on_released(pick.root)
                    if group := group_id(progress.order.request):
                        self._joined.leave(group, instance)
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
                    order, group = each.order, each.order.alternative.group
                    for instance, pick in zip(order.instances, answer.picks, strict=False):
                        self.pending.drop(pick.reservation)
                        if group is not None:
                            self._joined.leave(group.id, instance)
                    each.order = self._orders.again(order)
                short = self._find_hosts([each for each, _ in short])
        for each, answer in short:
            if answer.short is not None and answer.short.code == RULE_ERROR:
                self._rule_errors.log(answer.short.refusal)
            self._take(each, answer)
        return is_current

    def _find_hosts(self, placed: Sequence[_OrderInProgress]) -> list[tuple[_OrderInProgress, events.Chosen]]:
        short: list[tuple[_OrderInProgress, events.Chosen]] = []
        for each, order in zip(placed, self.narrow([each.order for each in placed]), strict=True):
            each.order = order
        answers = self.choosing().choose([each.order for each in placed])
        for each, answer in zip(placed, answers, strict=True):
            if answer.short is None:
                self._take(each, answer)
            else:
                short.append((each, answer))
        return short

    async def _preempt(self, placed: Sequence[_OrderInProgress]) -> None:
        found = await self.preemption.find_each([each.order for each in placed]) if self.preemption else ()
        for each, choice in zip(placed, found, strict=True):
            self._take(each, choice)

    def _find_alternates(self, placed: Sequence[_OrderInProgress]) -> None:
        if placed:
            choosing = self.choosing()
            for each in placed:
                self._take(each, events.AlternatesFound(choosing.alternates(each.order)))

    async def _find_help(self, placed: Sequence[_OrderInProgress]) -> None:
        if placed:
            held, orders = await self.drawn.read_held(), [each.order for each in placed]
            for each, helpful in zip(
                placed, helps_of(orders, self.choosing(), held, self.clock), strict=True
            ):
                self._take(each, events.HelpFound(helpful))

    def choosing(self, supposed: HasReservations | None = None) -> Choosing:
        """Return an object that chooses hosts; with `supposed`, choices are hypothetical and not reserved."""
        joined = self._joined if supposed is None else self._joined.copy()
        reservations = supposed or self.pending
        now, _ = self.hosts_now()
        return Choosing(self.source, self._hosts, now, self.policy, reservations, joined)

    async def resolved(self, requests: Sequence[BuildRequested]) -> Sequence[Order]:
        """Make orders from requests, and query the hosts of the instances that they name."""
        return await self.resolved_for([(request, BUILD) for request in requests])

    async def resolved_for(self, asked: Sequence[Asked]) -> Sequence[Order]:
        """Make orders with purposes of features, and query the hosts of the instances that they name."""
        return await self.resolve([self._orders.begin(request, 0.0, purpose) for request, purpose in asked])

    async def resolve(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Return orders with the present hosts of the instances and server groups that they name."""
        return await self.drawn.resolve(await self._resolving.resolve(orders))

    async def _claim(self, placed: Sequence[_OrderInProgress]) -> None:
        if not placed:
            return
        slots = SlotAssignments()
        questions = [ClaimRequested(claims=claims_of(each.order, slots)) for each in placed]
        answers = await dependencies.claim_each(self.placement, questions)
        results = [each for answer in answers if isinstance(answer, ClaimAnswered) for each in answer.results]
        count_claims(results)
        for each, answer in zip(placed, answers, strict=True):
            if isinstance(answer, AnswerRefused):
                self._take(each, events.ClaimImpossible(str(answer)))
            else:
                self._take(each, events.ClaimAnswers(tuple(answer.results)))

    def _reserve_host(self, order: Order, choice: events.ReserveHost) -> None:
        self.pending.confirm_claimed(choice)
        if group := group_id(order.request):
            self._joined.join(group, choice.instance, choice.way.root)

    async def _locate(self, placed: Sequence[_OrderInProgress]) -> None:
        held = [held for each in placed for _, held in each.order.held_before()]
        located = events.Located(await self.ending.look_up(held))
        for each in placed:
            event = located
            if self.preemption is not None:
                event = await self.preemption.of_located(each.order, located)
            self._take(each, event)

    async def _fence(self, placed: Sequence[_OrderInProgress]) -> None:
        fences = [each.order.fences() for each in placed]
        for each, answer in zip(placed, await self.ending.fence(fences), strict=True):
            self._take(each, answer)


def _needing(placed: Sequence[_OrderInProgress], need: Need) -> list[_OrderInProgress]:
    return [each for each in placed if each.need is need]
