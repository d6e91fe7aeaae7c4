"""Chooses and claims hosts and alternates for many build requests at a time.

Each request is placed by the pure state machine of core/order.py. Its effects are executed for the whole
batch: one search and one evaluation for equal requests, one claim for all, one lookup of allocations. The
choice of hosts contains no await, so no host changes during it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from bus import parts
from bus.candidates import CandidateSource
from bus.claims import ClaimAnswered, ClaimRequested
from bus.clock import Clock
from bus.context import sent_at
from bus.decisions import RULE_ERROR
from bus.errors import AnswerRefused, Poison, Retry
from bus.messages import (
    BuildCancelled,
    BuildCancelRequested,
    BuildDeleteRequested,
    BuildPlaced,
    BuildRequested,
    HostFailed,
    HostReported,
)
from bus.projects import ClientQuery
from bus.protocol import Intake, ask_each
from bus.queries import DecisionFound, FindCandidates, FindWaiting, WaitingFound
from bus.repetitions import refused_repetition, scheme_of
from bus.vocabulary import Allocations, Id, Message
from bus.worker import WorkerRows
from scheduler_worker import dependencies, queries
from scheduler_worker.core import events
from scheduler_worker.core.choosing import Choosing, TentativeHosts, mappings_of
from scheduler_worker.core.demand import Shape, shape_of
from scheduler_worker.core.events import Need, TakenOver
from scheduler_worker.core.narrowing import Narrowing, Remedies, claims_of
from scheduler_worker.core.order import (
    BUILD,
    MAX_SPEC_BYTES,
    Order,
    Purpose,
    Times,
    Verdict,
    attempts_of,
    size_of,
    step,
    too_much,
)
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking import HasReservations
from scheduler_worker.core.request import Prefilters, RequestOptions, Unreadable, alternatives_of, prefilters
from scheduler_worker.core.rule import ITS_OWN, Alternative, ClaimPart, RuleError, as_anybodys
from scheduler_worker.core.tally import MOST_SEARCHES, Late, Tally
from scheduler_worker.dependencies import HeldAllocations, prepared_in_parts
from scheduler_worker.hosts import CROSSED, KnownHosts
from scheduler_worker.refusals import count_claims

# Section: reads the hosts of the instances that the hints `same_host` and `different_host` of requests name.


class NamedInstances(Narrowing):
    """The narrowing for orders with the hint `same_host` or `different_host`."""

    def __init__(self, allocations: HeldAllocations) -> None:
        self._allocations = allocations

    def concerns(self, order: Order) -> bool:
        hints = order.request.hints
        return bool(hints.same_host or hints.different_host)

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        return orders if again else await prepared_in_parts(orders, self._prepared)

    async def _prepared(self, orders: Sequence[Order]) -> Sequence[Order]:
        hints = [order.request.hints for order in orders]
        roots = await self._allocations.hosts_of(
            [id_ for each in hints for id_ in (*each.same_host, *each.different_host)]
        )
        prepared = []
        for order, named in zip(orders, hints, strict=True):
            same, different = (
                frozenset([roots[id_] for id_ in ids if id_ in roots])
                for ids in (named.same_host, named.different_host)
            )
            fields = {"same": same if named.same_host else None, "different": different}
            prepared.append(order.with_alternatives(**fields))
        return prepared

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        alternative = order.preferred
        return (alternative.same, alternative.different), alternative.different.union(alternative.same or ())


# Section: the flavors of recent requests.


MOST_FLAVORS = 20


class RecentFlavors:
    """The flavors of the latest requests, at most MOST_FLAVORS; flavors of one name and several sizes count
    separately.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], Alternative] = {}

    def see(self, orders: Sequence[Order]) -> None:
        known = self._known
        for order in orders:
            flavor = order.request.flavor
            key = flavor.name, flavor.vcpus, flavor.memory_mb, flavor.disk_gb
            if key not in known and order.attempts:
                if len(known) >= MOST_FLAVORS:
                    del known[next(iter(known))]
                known[key] = order.preferred

    def latest(self) -> Sequence[Alternative]:
        return list(self._known.values())


def demanded(orders: Sequence[Order]) -> list[tuple[Shape, int]]:
    """Return the shapes of the instances of orders; orders for equal requests are counted together."""
    alternatives: dict[int, Alternative] = {}
    instances = Counter[int]()
    for order in orders:
        if order.attempts:
            alternative = order.preferred
            alternatives[id(alternative)] = alternative
            instances[id(alternative)] += len(order.instances)
    return [(shape_of(alternatives[key].question), several) for key, several in instances.items()]


# Section: searches, within time limits, for changes with which requests without a host would fit.


BATCH_SECONDS = 0.02  # seconds per batch, after which no further search begins
REQUEST_SECONDS = 1.0  # seconds per request; one search over large provider trees takes tenths of a second


def helps_of(
    orders: Sequence[Order], choosing: Choosing, remedies: Sequence[Remedies], clock: Clock
) -> list[tuple[str, ...]]:
    """Return for each order the sentences that suggest changes; equal orders share one search.

    An order gets no suggestions if BATCH_SECONDS pass before its search begins, or if it names a reservation.
    """
    late = late_after(BATCH_SECONDS, clock)
    found: dict[Hashable, tuple[str, ...]] = {}
    suggested = []
    for order in orders:
        alternative = order.preferred
        kind = choosing.policy.kind(alternative), order.needed
        # a restricted request names its reservation, so the changes would not help it
        if kind not in found and alternative.restriction is None and not late():
            with suppress(RuleError):  # no suggestions if a filter or weigher fails for a changed request
                found[kind] = all_helps(order, choosing, late_after(REQUEST_SECONDS, clock), remedies)
        suggested.append(found.get(kind, ()))
    return suggested


def all_helps(order: Order, choosing: Choosing, late: Late, remedies: Sequence[Remedies]) -> tuple[str, ...]:
    """Return sentences with changes that would make an order fit."""
    tally = Tally(MOST_SEARCHES, late, needed=order.needed)
    return tuple([sentence for remedy in remedies for sentence in remedy(order, choosing, tally)])


def late_after(seconds: float, clock: Clock) -> Late:
    """Return a function that returns whether more than `seconds` have passed since this call."""
    until = clock.monotonic() + seconds
    return lambda: clock.monotonic() > until


# Section: converts requests to orders: parses equal requests once.


MORE_WHEN_PACKED = 4  # additional alternates if weighers prefer full hosts, which are soon full
BATCH_BYTES = 16 * 1024 * 1024  # bytes of flavors, images and metadata in a batch, or one request
REMEMBERED = 4096  # different requests whose parsed form is cached
REMEMBERED_BYTES = 32 * 1024 * 1024  # bytes of all cached requests
# Fields that most policies do not read: then requests that differ only in these fields are equal.
_SELDOM_READ: Mapping[str, Any] = {"metadata": {}, "name": "", "user": ""}

_encode = parts.encoder(order="deterministic").encode


class _Read(NamedTuple):
    """The part of the reading of a request that equal requests share."""

    attempts: tuple[tuple[Alternative, ...], ...]
    content: str  # the start of the digests of their contents


class Orders:
    """Makes orders from requests; caches the parsed requests until hosts are added or removed."""

    def __init__(self, source: CandidateSource, options: RequestOptions, policy: ChoicePolicy) -> None:
        self.options = options
        self._source = source
        self._options = options
        self._policy = policy
        unread = {name: none for name, none in _SELDOM_READ.items() if not self._policy.reads(name)}
        self._apart = {**ITS_OWN, **unread}
        self._scheme = scheme_of(*unread)  # requests are read alike by all schedulers with these fields
        self._known: dict[tuple[bytes, object], _Read] = {}
        self._bytes = 0  # size of the cached requests
        self._layout = -1
        self._prefilters: Prefilters | None = None

    def follow(self) -> "Orders":
        """Subscribe to changes of the index, so that limits set by aggregates and cells stay current; return
        `self`. An object for a single what-if question need not subscribe.
        """
        self._source.watch(self._received)
        return self

    def _received(self, roots: Sequence[str], described: Sequence[str]) -> None:
        if described:
            self._prefilters = None

    def begin(self, request: BuildRequested, retried_for: float, purpose: Purpose = BUILD) -> Order:
        """Return the order for a request. `retried_for` has the seconds since the request's first retry."""
        size = size_of(request)
        instances = tuple(dict.fromkeys(request.instances))
        together = size * len(instances)
        invalid = too_much(request, size, together)
        attempts: tuple[tuple[Alternative, ...], ...] = ()
        common = ""
        if not invalid:
            try:
                attempts, common = self._read(request)
            except Unreadable as problem:
                invalid = str(problem)
        more = MORE_WHEN_PACKED if self._policy.packs and request.alternates else 0
        order = Order(
            request=request,
            attempts=attempts,
            instances=instances,
            purpose=purpose,
            alternates=request.alternates + more,
            verdict=Verdict(invalid=invalid) if invalid else Verdict(),
            times=Times(requested=sent_at(request), retried_for=retried_for),
            content=_content(common or self._digest_of(request), request),
        )
        return purpose.adapt(order)

    def alternatives_of(self, request: BuildRequested) -> Sequence[Alternative]:
        """Return the flavors and page sizes to try for a request, best first; empty if it is invalid."""
        return self.begin(request, 0.0).alternatives

    def names_unknown(self, request: BuildRequested) -> bool:
        if not (request.forced_host or request.wanted_host or request.ignore_hosts):
            return False
        named = (request.forced_host, request.wanted_host, *request.ignore_hosts)
        return any(host and not self._source.named(host) for host in named)

    def again(self, order: Order) -> Order:
        """Return a waiting request's order with its search updated for the present aggregates, cells and
        excluded hosts."""
        if order.verdict.invalid:
            begun = self.begin(order.request, order.times.retried_for, order.purpose)
            return msgspec.structs.replace(begun, times=order.times, parts=order.parts)
        try:
            anew = self._read(order.request).attempts
        except Unreadable:  # a host that the request names was deleted since it was parsed
            return order
        # `order` has all attempts once for each reservation
        repeated = anew * (len(order.attempts) // len(anew))
        attempts = [
            tuple([_updated(*pair) for pair in zip(attempt, now, strict=True)])
            for attempt, now in zip(order.attempts, repeated, strict=True)
        ]
        return msgspec.structs.replace(order, attempts=tuple(attempts))

    def _read(self, request: BuildRequested) -> _Read:
        source, narrowing = self._source, self._prefilters
        if narrowing is None:
            aggregates, cells = source.aggregates.values(), source.cells.values()
            narrowing = self._prefilters = prefilters(aggregates, self._options, cells)
            self._forget()
        if self._layout != source.layout or len(self._known) > REMEMBERED or self._bytes > REMEMBERED_BYTES:
            self._layout = source.layout
            self._forget()
        named = request.hints.same_host or request.hints.different_host
        instances = request.instances if named else len(request.instances)
        alike = _encode(msgspec.structs.replace(request, **self._apart)), instances
        known = self._known.get(alike)
        if known is None:
            alternatives = alternatives_of(
                request, self._options, source.named, lambda: {host.host for host in source.hosts()}
            )
            unheeded, anybodys = self._policy.unheeded(request), as_anybodys(request)
            narrowed = [
                narrowing.narrow(replace(each, request=anybodys, notes=(*each.notes, *unheeded)))
                for each in alternatives
            ]
            known = _Read(attempts_of(request, narrowed), self._digest_of(request))
            self._known[alike] = known
            self._bytes += len(alike[0])
        return known

    def _digest_of(self, request: BuildRequested) -> str:
        """Return the start of the digest of a request's content: equal requests have the same one. It stays
        the same if some instances of a waiting request end.
        """
        encoded = _encode(msgspec.structs.replace(request, **self._apart, at_least=0))
        return f"{self._scheme}{blake2b(encoded, digest_size=8).hexdigest()}"

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0


def _content(common: str, request: BuildRequested) -> str:
    """Return the digest of a request's content, given what it has in common with equal requests."""
    further = f"{request.user} {request.name}".encode()
    if request.metadata:
        further += _encode(request.metadata)
    return f"{common}{crc32(further):08x}"


def _updated(alternative: Alternative, now: Alternative) -> Alternative:
    """Return an alternative with the aggregates, cells and excluded hosts of the same alternative `now`."""
    renew, restriction = partial(_renewed, now=now), alternative.restriction
    return replace(
        alternative,
        question=renew(alternative.question),
        restriction=None if restriction is None else restriction.renewed(renew),
        notes=now.notes,
    )


def _renewed(question: FindCandidates, now: Alternative) -> FindCandidates:
    return msgspec.structs.replace(
        question,
        not_roots=tuple(sorted({*question.not_roots, *now.question.not_roots})),
        root_member_of=now.question.root_member_of,
        root_not_member_of=now.question.root_not_member_of,
        not_cells=now.question.not_cells,
    )


def postponed(orders: Sequence[Order], clock: Clock) -> list[Retry | None]:
    """Return a `Retry` for each order with which a batch of requests would exceed BATCH_BYTES, else None."""
    bytes_left, later = BATCH_BYTES, list[Retry | None]()
    if sum([len(order.instances) for order in orders]) * MAX_SPEC_BYTES <= BATCH_BYTES:
        return [None] * len(orders)
    for order in orders:
        size = 0 if order.verdict.invalid else size_of(order.request) * len(order.instances)
        if size > bytes_left and bytes_left < BATCH_BYTES:
            after = clock.chance.uniform(0.1, 0.5)
            later.append(Retry(after=after, why="other large requests go first"))
        else:
            bytes_left -= size
            later.append(None)
    return later


Asked = tuple[BuildRequested, Purpose]
PlacingOutcome = Sequence[Message] | Retry | Poison
# What a fallback did with an order: it chose hosts, it handles the order from now on, or it passes the order,
# perhaps with a longer reason, to the next fallback.
FallbackAnswer = events.Chosen | TakenOver | Order


class Fallback:
    """A feature that helps orders without a host, in the sequence of the list of fallbacks. This class has no
    effect; features derive their fallbacks from it, and replace the methods that they need.
    """

    def taken(self, request: Id) -> BuildRequested | None:
        """Return a request that the fallback has taken over, with its instances that have not ended; None:
        it has not taken this request over.
        """
        return None

    async def receive(self, orders: Sequence[Order]) -> Sequence[TakenOver | Order]:
        """Return for each order of a new request the order, or `TakenOver` if the fallback takes it over
        without a search, because equal requests came before it. A request taken over is stored already.
        """
        return orders

    async def handle(self, orders: Sequence[Order], placing: "Scheduler") -> Sequence[FallbackAnswer]:
        """Return for each order what the fallback did with it. The verdict of an order has its shortages or
        the refusal of its claim, or neither if all of its rounds are used up. Chosen hosts are claimed. If
        these claims are refused, the order is searched again, and the fallbacks are asked again. A request
        taken over is stored already. An order with a final reason in its verdict ends with this reason.
        """
        return orders

    def placed(self, orders: Sequence[Order]) -> None:
        """Count the orders of new requests of which instances got hosts, at the end of their batch."""

    async def parts_of(
        self, order: Order, instances: Sequence[Id], placing: "Scheduler"
    ) -> Mapping[Id, tuple[ClaimPart, ...]]:
        """Return what the messages must carry about instances that an earlier delivery placed."""
        return {}

    def polls(self, request: BuildRequested) -> bool:
        """Return whether a waiting request must be tried again from time to time, because this fallback may
        find hosts for it that no change of placement announces.
        """
        return False

    async def cancel(
        self, asked: BuildCancelRequested
    ) -> Sequence[BuildCancelled | BuildDeleteRequested] | None:
        """Cancel a build or request that the fallback has taken over, and return the answer, and orders to
        delete builds that have a host already. Return None, without effect, if the fallback has none.
        """
        return None

    async def explain(self, id_: Id, found: DecisionFound) -> DecisionFound:
        """Return why a build or request has no host: `found` is the stored decision, which the fallback may
        extend or, if it has taken the request over, replace.
        """
        return found

    async def waiting(self, question: FindWaiting) -> WaitingFound | None:
        """Return the requests that wait in this fallback, or None if requests never wait in it."""
        return None

    async def projects_of(self, ids: Collection[Id]) -> Mapping[Id, str]:
        """Return, by id, the project of each build or request that the fallback has taken over."""
        return {}


@dataclass(frozen=True, kw_only=True)
class RequestIntake:
    """The sequence in which new build requests are placed. `inbox`: None: as they arrive."""

    inbox: Intake | None = None
    prefetch: int = 0  # messages without acknowledgement that the inbox may have; 0: as without an inbox
    calls: int = 0  # concurrent batches in addition to those of the settings


# Returns, for those of the ids that a cell knows as ids of a feature's objects, such as moves, their builds.
BuildsOf = Callable[[str, Sequence[Id]], Awaitable[Mapping[Id, Id]]]


@dataclass(frozen=True, kw_only=True)
class SchedulerPart:
    """A feature's part of a scheduler."""

    narrowings: tuple[Narrowing, ...] = ()  # called in the order of all parts
    fallbacks: tuple[Fallback, ...] = ()  # asked in the order of all parts
    client_queries: Mapping[str, ClientQuery] = field(default_factory=dict)  # of clients, by name
    builds_of: tuple[BuildsOf, ...] = ()  # find the builds that objects of the feature are about
    intake: RequestIntake | None = None  # at most one feature has one
    rows: WorkerRows = field(default_factory=WorkerRows)  # added to the table of the worker
    offers: tuple[object, ...] = ()  # objects for the parts of features that need this one


WatchReport = Callable[[HostReported], Callable[[], None]]
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
        rule, now = text.partition(" raised ")[0], self._clock.monotonic()
        if now - self._logged.get(rule, -RULE_ERROR_SECONDS) >= RULE_ERROR_SECONDS:
            self._logged[rule] = now
            dependencies.log.error("requests are refused: %s", text)


class Scheduler:
    """Places requests in batches, and holds the hosts' reports and the pending choices between batches."""

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
        """Return a scheduler with another policy and the same hosts and reservations, for one question."""
        other = copy(self)
        other.policy = policy
        other.orders = Orders(self.source, self.orders.options, policy)
        return other

    async def opened(self) -> None:
        self.book.opened(self.clock.monotonic())

    def watch_reports(self, watch: WatchReport) -> None:
        """Call `watch` before each report of hosts is applied, and then the function that it returns."""
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
        """Return a request that a fallback has taken over, with the instances that have not ended."""
        found = (fallback.taken(request) for fallback in self.fallbacks)
        return next((first for first in found if first is not None), None)

    async def place_new(self, orders: Sequence[Order]) -> list[events.End]:
        """Place orders of new requests, like `place`, unless a fallback takes them over without a search."""
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
        """Return the orders of requests for new instances, and count what they ask for, unless they were
        begun before (`again`, or after a retry).
        """
        orders = self.begin_for([(request, purpose) for request in requests])
        self.flavors.see(orders)
        new = () if again else [order for order in orders if not order.times.retried_for]
        self.demand.count(demanded(new), self.clock.now())
        return orders

    def begin_for(self, asked: Sequence[Asked]) -> list[Order]:
        """Return the orders of requests with purposes of features."""
        self.book.listened(self.clock.monotonic())
        begin, retried_for = self.orders.begin, self.retries.retried_for
        return [begin(request, retried_for(request.request), purpose) for request, purpose in asked]

    async def place(self, orders: Sequence[Order]) -> list[events.End]:
        """Place orders, and return their results in the same sequence. An order fails for lack of a host only
        after a search in an index that was updated during this call."""
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
        """Return an object that chooses hosts; with `supposed`, choices are hypothetical and not reserved."""
        tentative = self._tentative if supposed is None else self._tentative.copy()
        reservations = supposed or self.pending
        now, _ = self.hosts.now()
        return Choosing(
            self.source, self.hosts.map, now, self.policy, reservations, tentative, self.narrowings
        )

    async def resolved(self, requests: Sequence[BuildRequested]) -> Sequence[Order]:
        """Make orders from requests, and query the hosts of the instances that they name."""
        return await self.resolved_for([(request, BUILD) for request in requests])

    async def resolved_for(self, asked: Sequence[Asked]) -> Sequence[Order]:
        """Make orders with purposes of features, and query the hosts of the instances that they name."""
        return await self.prepare([self.orders.begin(request, 0.0, purpose) for request, purpose in asked])

    async def prepare(self, orders: Sequence[Order], again: bool = False) -> Sequence[Order]:
        """Return orders with what narrowings need to know for the choice of their hosts."""
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
        """Return orders with the limits of their hosts at this moment. Hosts must be chosen before the next
        `await`, after which the limits may differ.
        """
        limited = list(orders)
        for narrowing in self.narrowings:
            at = [index for index, order in enumerate(limited) if narrowing.concerns(order)]
            answers = narrowing.limit([limited[index] for index in at]) if at else ()
            for index, order in zip(at, answers, strict=True):
                limited[index] = order
        return limited

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        """Return a value that differs if a waiting order must be evaluated again, because what its request
        names has changed, and the hosts on which the order depends.
        """
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
