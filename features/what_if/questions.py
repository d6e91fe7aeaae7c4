"""Answers what-if questions. Chooses hosts as for build requests, but claims nothing."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from bus.candidates import PlacedHost
from bus.decisions import UNREADABLE, Decision
from bus.vocabulary import Allocations
from features.what_if.messages import CapacityLeft, PlacedThere, RankedHost, WhatIf, WhatIfAnswered
from features.what_if.supposing import Supposing
from scheduler_worker.extension import (
    REQUEST_SECONDS,
    Alternative,
    CapacityReservation,
    Choosing,
    FoundHosts,
    Order,
    Pick,
    RuleError,
    Searching,
    Shortage,
    all_helps,
    claims_of,
    late_after,
    scores_of,
)

SLICE = 0.003  # seconds of counting after which other tasks such as boots may run
AT_ONCE = 50  # instances chosen before other tasks may run
LONGEST = 2.0  # seconds of counting free capacity
PATIENCE = 30.0  # seconds that a caller waits for the answer; then the question is stopped
ON_ONE_HOST = 10_000
TRIED = 1000  # most instances counted on a host with several providers, because each needs a search
MOST_WAYS = 1024
_GROUPS = "count: with a server group, a topology or roles, at most the instances of one request"


@dataclass(slots=True)
class _Counted:
    """The hosts and instances counted so far for a what-if question, and the host being counted now."""

    hosts: Counter[tuple[str, str]] = field(default_factory=Counter)
    instances: Counter[tuple[str, str]] = field(default_factory=Counter)
    after: int = -1
    host: PlacedHost | None = None  # the host with several providers that is counted now
    tried: list[CapacityReservation] = field(default_factory=list)  # hypothetical instances on that host
    capped: bool = False
    done: bool = False

    def add(self, host: PlacedHost, several: int) -> None:
        self.after = host.position
        if several:
            self.hosts[host.cell, host.zone] += 1
            self.instances[host.cell, host.zone] += several

    def finish(self) -> list[CapacityReservation]:
        if self.host is not None:
            self.add(self.host, len(self.tried))
        tried, self.host, self.tried = self.tried, None, []
        return tried


@dataclass(frozen=True)
class Supposed:
    """The answer to a what-if question so far, and the order with the hosts that the answer supposes."""

    question: WhatIf
    order: Order
    answer: WhatIfAnswered
    names_others: bool = True  # the answer may name instances and requests of other projects

    def having(self, **fields: Any) -> "Supposed":
        """Return this with some fields of the answer replaced."""
        return replace(self, answer=structs.replace(self.answer, **fields))


# Adds to an answer, replaces its hosts, or refuses the request. The caller holds the lock of `WhatIfs`.
Suppose = Callable[[Supposed], Awaitable[Supposed]]


def _invalid(why: str) -> WhatIfAnswered:
    return WhatIfAnswered(fits=False, refusal=why, decision=Decision(code=UNREADABLE))


class WhatIfs:
    """Answers what-if questions about requests, one question at a time.

    Joins of this feature add to `steps`. After the choice of hosts, each step gets the result of the step
    before it, until one refuses the request. Joins add their steps in the order of the list of features.
    """

    def __init__(self, scheduler: Searching) -> None:
        self.scheduler = self._scheduler = scheduler
        self.lock = asyncio.Lock()
        self.steps: list[Suppose] = []

    async def answer(self, question: WhatIf, *, names_others: bool = True) -> WhatIfAnswered:
        """Return where a request would be placed now. `names_others`: the answer may name instances and
        requests of other projects.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._answer(question, names_others)
        except TimeoutError:
            return WhatIfAnswered(fits=False, refusal=f"there was no answer within {PATIENCE:g} s")
        except RuleError as failed:  # while further instances were counted
            return WhatIfAnswered(fits=False, refusal=str(failed), decision=Decision(code=failed.code))

    async def _answer(self, question: WhatIf, names_others: bool) -> WhatIfAnswered:
        async with self.lock:
            [order] = await self._scheduler.resolved([question.request])
            if order.verdict.invalid:
                return _invalid(order.verdict.invalid)
            if question.is_external:
                order = order.with_alternatives(is_external=True)
            if question.count > len(order.instances):
                if any(each.parts for each in order.alternatives) or order.request.parts.sections:
                    return _invalid(_GROUPS)
                more = [self._scheduler.clock.uuid() for _ in range(question.count - len(order.instances))]
                order = structs.replace(order, instances=(*order.instances, *more))
            supposing = self.supposing()
            answer, order = await self.chosen(order, question.best, supposing)
            supposed = Supposed(question, order, answer, names_others)
            for suppose in self.steps:
                if not supposed.answer.refusal:
                    supposed = await suppose(supposed)
            answer, order = supposed.answer, supposed.order
            if answer.fits and question.claims:
                answer = structs.replace(answer, claims=claims_of(order, {}, self._scheduler.narrowings))
            # Further instances of a gang are not counted: their number is not the sum over hosts.
            if not question.room or answer.refusal or self._is_chosen_jointly(order, supposing):
                return answer
            found, cut = await self._room(order.alternative, supposing)
            capacity = tuple(
                CapacityLeft(cell=cell, zone=zone, hosts=found.hosts[cell, zone], instances=instances)
                for (cell, zone), instances in sorted(found.instances.items())
            )
            return structs.replace(answer, room=capacity, cut=cut)

    def _is_chosen_jointly(self, order: Order, supposing: Supposing) -> bool:
        with self._choosing_with(supposing) as choosing:
            return bool(order.attempts) and choosing.scope(order, order.current).jointly is not None

    async def chosen(self, order: Order, best: int, supposing: Supposing) -> tuple[WhatIfAnswered, Order]:
        """Return the answer for the first flavor that fits enough instances, with at most `best` ranked
        hosts, or why no flavor fits. Also return the order with this flavor and its hosts.
        """
        [order] = self._scheduler.limit([order])
        shorts: list[Shortage] = []
        before = supposing.several
        for attempt in range(len(order.attempts)):
            tried = structs.replace(order, attempt=attempt)
            picks, short = await self._picks(tried, supposing)
            if len(picks) >= order.needed:
                return self._fitting(tried, best, picks), structs.replace(tried, picks=tuple(picks))
            supposing.forget(before)
            if short is None or not short.optional:
                shorts.append(replace(short or Shortage(), fitted=len(picks)))
        first = shorts[0]
        if first.refusal:
            return WhatIfAnswered(
                fits=False, refusal=first.refusal, decision=Decision(code=first.code)
            ), order
        remedies = await self._scheduler.remedies()
        with self._choosing_with(supposing) as choosing:
            helpful = all_helps(order, choosing, late_after(REQUEST_SECONDS, self._scheduler.clock), remedies)
        decision = structs.replace(first.decision(()), helps=helpful)
        return WhatIfAnswered(fits=False, decision=decision), order

    async def _picks(self, order: Order, supposing: Supposing) -> tuple[list[Pick], Shortage | None]:
        picks: list[Pick] = []
        # Instances of a group or of roles are chosen together, because each influences the hosts of the
        # others.
        alone = not order.alternative.parts and not order.request.parts.sections
        at_once, least = (AT_ONCE, 1) if alone else (len(order.instances), order.needed)
        while len(picks) < len(order.instances):
            some = order.instances[len(picks) : len(picks) + at_once]
            with self._choosing_with(supposing) as choosing:
                at_least = 0 if order.request.parts.sections else least
                as_many_as_fit = structs.replace(order.request, at_least=at_least)
                part = structs.replace(order, instances=some, request=as_many_as_fit, alternates=0)
                (answer,) = choosing.choose([part])
            picks += answer.picks
            if answer.short is not None:
                return picks, answer.short
            await asyncio.sleep(0)
        return picks, None

    def _fitting(self, order: Order, best: int, picks: list[Pick]) -> WhatIfAnswered:
        with self._choosing_with(self.supposing()) as choosing:
            first = choosing.rank(order.alternative, order.request.request).take(best, MOST_WAYS) or picks[0]
        ways = {way.root: way for way in reversed(first.choices)}
        instances = Counter([pick.root for pick in picks])
        chosen = {pick.root: pick.choices[0] for pick in picks}
        return WhatIfAnswered(
            fits=True,
            flavor=order.alternative.alternative_index,
            placed=tuple(
                PlacedThere(root=root, host=way.host, cell=way.cell, zone=way.zone, instances=instances[root])
                for root, way in chosen.items()
            ),
            best=tuple(
                RankedHost(
                    root=root,
                    host=way.host,
                    cell=way.cell,
                    zone=way.zone,
                    scores=scores_of(first.record, root),
                )
                for root, way in reversed(ways.items())
            ),
            decision=first.decision(first.root, ()),
        )

    def supposing(self, free: Sequence[Allocations] = ()) -> Supposing:
        """Return an object for hypothetical choices. While they are active, the amounts `free` are free."""
        scheduler = self._scheduler
        return Supposing(scheduler.source, scheduler.book, scheduler.clock.monotonic(), free)

    async def _room(self, alternative: Alternative, supposing: Supposing) -> tuple[_Counted, str]:
        clock = self._scheduler.clock
        counted, spent, layout = _Counted(), 0.0, self._scheduler.source.layout
        while not counted.done:
            if spent > LONGEST:
                counted.finish()
                return counted, f"counting stopped after {LONGEST:g} s: there may be room on more hosts"
            if self._scheduler.source.layout != layout:
                return counted, "counting stopped: hosts came or went meanwhile"
            began = clock.monotonic()
            with self._choosing_with(supposing) as choosing:
                self._count(choosing.find(alternative), counted, supposing)
            spent += clock.monotonic() - began
            await asyncio.sleep(0)
        cut = f"at most {TRIED:,} are counted on a host of several providers"
        return counted, cut if counted.capped else ""

    def _count(self, hosts: FoundHosts, counted: _Counted, supposing: Supposing) -> None:
        clock = self._scheduler.clock
        until = clock.monotonic() + SLICE
        for index in hosts.passing_after(counted.after):
            if counted.host is not None and counted.host.uuid != hosts.host(index).uuid:
                self._finish(counted, supposing)  # the counted instances filled the host
            if not self._count_host(hosts, index, counted, supposing, until):
                return
            if clock.monotonic() > until:
                return
        self._finish(counted, supposing)
        counted.done = True

    def _count_host(
        self, hosts: FoundHosts, index: int, counted: _Counted, supposing: Supposing, until: float
    ) -> bool:
        """Count the instances that fit on a host; return False if this is not finished at `until`."""
        ways = hosts.find_ways(index, 1) if hosts.admits(index) else ()
        host, most = hosts.host(index), ON_ONE_HOST
        if (further := hosts.alternative.most_on(host.uuid)) is not None:
            most = max(further - supposing.on(host.uuid), 0)
        if ways and not ways[0].free_by_provider:
            (asked,) = ways[0].allocations.values()
            counted.add(host, min(most, *(ways[0].free[name] // amount for name, amount in asked.items())))
            return True
        counted.host = host
        tries = min(most, TRIED - len(counted.tried))
        while ways and tries:
            counted.tried.append(supposing.enter(ways[0], builds=False))
            tries -= 1
            if self._scheduler.clock.monotonic() > until:
                return False
            ways = hosts.find_ways(index, 1)
        counted.capped |= bool(ways) and len(counted.tried) == TRIED
        self._finish(counted, supposing)
        return True

    def _finish(self, counted: _Counted, supposing: Supposing) -> None:
        """Add the instances that fit on the host to the count. Drop their hypothetical reservations, unless
        pools exist: an instance that uses a pool reduces the capacity of further hosts."""
        tried = counted.finish()
        if not self._scheduler.source.sharing:
            for reservation in tried:
                supposing.drop(reservation)

    @contextmanager
    def _choosing_with(self, supposing: Supposing) -> Iterator[Choosing]:
        """Yield an object that chooses hosts as if the hypothetical instances of `supposing` were placed. The
        `with` block must not await, because other tasks would then count these instances too."""
        choosing = self._scheduler.choosing(supposing)
        with supposing.active():
            yield choosing
