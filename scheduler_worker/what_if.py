"""What would become of a request: chosen as boots are, in slices, and nothing of it stays."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec import structs

from bus.queries import PlacedThere, RankedHost, RoomLeft, WhatIf, WhatIfAnswered
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.events import Chosen
from scheduler_worker.core.helping import helps
from scheduler_worker.core.order import Order
from scheduler_worker.core.pick import Pick, Promise, scores_of
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.shortage import Shortage
from scheduler_worker.core.supposing import Supposing
from scheduler_worker.core.wish import Wish
from scheduler_worker.placing import Scheduler

SLICE = 0.003  # seconds of looking between two breaths: boots go on meanwhile
AT_ONCE = 50  # instances chosen in one go
LONGEST = 2.0  # seconds of counting room
ON_ONE_HOST = 10_000
MOST_WAYS = 1024


@dataclass(slots=True)
class _Counted:
    """Room found so far; hosts are looked at in the order of their positions."""

    hosts: Counter[tuple[str, str]] = field(default_factory=Counter)
    instances: Counter[tuple[str, str]] = field(default_factory=Counter)
    after: int = -1
    over: bool = False


class WhatIfs:
    """Answers them, one at a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.one = asyncio.Lock()

    async def answer(self, question: WhatIf) -> WhatIfAnswered:
        async with self.one:
            order, begun = await self._scheduler.ready(question.request)
            if begun.refusal:
                return WhatIfAnswered(fits=False, refusal=begun.refusal)
            supposing = self.supposing()
            answer, fitting = await self.chosen(order, question.best, supposing)
            if not question.room or answer.refusal:
                return answer
            found, cut = await self._room(fitting, question.request.request, supposing)
            room = tuple(
                [
                    RoomLeft(cell=cell, zone=zone, hosts=found.hosts[cell, zone], instances=instances)
                    for (cell, zone), instances in sorted(found.instances.items())
                ]
            )
            return structs.replace(answer, room=room, cut=cut)

    # Would it fit, and where

    async def chosen(self, order: Order, best: int, supposing: Supposing) -> tuple[WhatIfAnswered, Wish]:
        """The first of its wishes by which all of it, or enough of it, fits beside what was supposed."""
        shorts: list[Shortage] = []
        before = supposing.several
        for nth, wish in enumerate(order.wishes):
            picks, short = await self._picks(structs.replace(order, nth=nth), supposing)
            if len(picks) >= order.needed:
                return self._fitting(wish, order.request.request, best, picks), wish
            supposing.forget(before)
            shorts.append(short or Shortage())
        first = shorts[0]
        if first.refusal:
            return WhatIfAnswered(fits=False, refusal=first.refusal), order.wishes[0]
        with self._looking(supposing) as choosing:
            said = helps(order.wishes[0], choosing, order.request.request)
        decision = structs.replace(first.decision(()), helps=said)
        return WhatIfAnswered(fits=False, decision=decision), order.wishes[0]

    async def _picks(self, order: Order, supposing: Supposing) -> tuple[list[Pick], Shortage | None]:
        picks: list[Pick] = []
        while len(picks) < len(order.instances):
            at_once = AT_ONCE if order.wish.group is None else len(order.instances)  # members see each other
            some = order.instances[len(picks) : len(picks) + at_once]
            with self._looking(supposing) as choosing:
                # Of a group as many as there must be: that decides where its first goes.
                least = 1 if order.wish.group is None else order.needed
                as_many_as_fit = structs.replace(order.request, at_least=least, alternates=0)
                part = structs.replace(order, instances=some, request=as_many_as_fit)
                (answer,) = choosing.choose([part])
            if not isinstance(answer, Chosen):
                return picks, answer.short
            picks += answer.picks
            if answer.short is not None:
                return picks, answer.short
            await asyncio.sleep(0)
        return picks, None

    def _fitting(self, wish: Wish, seed: str, best: int, picks: Sequence[Pick]) -> WhatIfAnswered:
        """With the best for one of them, as hosts are before any of this."""
        with self._looking(self.supposing()) as choosing:
            first = choosing.rank(wish, seed).take(best, MOST_WAYS) or picks[0]
        ways = {way.root: way for way in reversed(first.choices)}
        there = Counter([pick.root for pick in picks])
        chosen = {pick.root: pick.choices[0] for pick in picks}
        return WhatIfAnswered(
            fits=True,
            flavor=wish.nth,
            placed=tuple(
                [
                    PlacedThere(root=root, host=way.host, cell=way.cell, zone=way.zone, instances=there[root])
                    for root, way in chosen.items()
                ]
            ),
            best=tuple(
                [
                    RankedHost(
                        root=root,
                        host=way.host,
                        cell=way.cell,
                        zone=way.zone,
                        scores=scores_of(first.record, root),
                    )
                    for root, way in reversed(ways.items())
                ]
            ),
            decision=first.decision(first.root, ()),
        )

    def supposing(self) -> Supposing:
        scheduler = self._scheduler
        return Supposing(scheduler.source, scheduler.book, scheduler.clock.monotonic())

    # How many more

    async def _room(self, wish: Wish, seed: str, supposing: Supposing) -> tuple[_Counted, str]:
        """Beside what was just supposed. Hosts are counted as rules admit them now."""
        clock = self._scheduler.clock
        counted, spent, layout = _Counted(), 0.0, self._scheduler.source.layout
        while not counted.over:
            if spent > LONGEST:
                return counted, f"counting stopped after {LONGEST:g} s: there may be room on more hosts"
            if self._scheduler.source.layout != layout:
                return counted, "counting stopped: hosts came or went meanwhile"
            began = clock.monotonic()
            with self._looking(supposing) as choosing:
                self._count(choosing.rank(wish, seed), counted, supposing)
            spent += clock.monotonic() - began
            await asyncio.sleep(0)
        return counted, ""

    def _count(self, ranking: Ranking, counted: _Counted, supposing: Supposing) -> None:
        """At least one more host, whatever the ranking cost."""
        clock = self._scheduler.clock
        until = clock.monotonic() + SLICE
        for index in ranking.admitted(beyond=counted.after):
            counted.after = ranking.position(index)
            several = self._room_at(ranking, index, supposing)
            if several:
                host = ranking.host(index)
                counted.hosts[host.cell, host.zone] += 1
                counted.instances[host.cell, host.zone] += several
            if clock.monotonic() > until:
                return
        counted.over = True

    def _room_at(self, ranking: Ranking, index: int, supposing: Supposing) -> int:
        """How many more fit on it: by arithmetic where it is one provider, else by trying."""
        ways = ranking.look(index, 1) if ranking.admits(index) else ()
        if not ways:
            return 0
        most, group, root = ON_ONE_HOST, ranking.wish.group, ways[0].root
        if group is not None and group.policy == "anti-affinity":
            most = group.max_per_host - ranking.wish.members.get(root, 0) - supposing.on(root)
        if not ways[0].rooms:
            (asked,) = ways[0].allocations.values()
            return min(max(most, 0), *(ways[0].free[name] // amount for name, amount in asked.items()))
        promises = list[Promise]()
        while ways and len(promises) < most:
            promises.append(supposing.enter(ways[0]))
            ways = ranking.look(index, 1)
        if not self._scheduler.source.sharing:  # where it is shared, other hosts have less for it
            for promise in promises:
                supposing.drop(promise)
        return len(promises)

    @contextmanager
    def _looking(self, supposing: Supposing) -> Iterator[Choosing]:
        """A stretch without an await. What was supposed counts in it, and nowhere else."""
        choosing = self._scheduler.choosing(supposing)
        supposing.resume()
        try:
            yield choosing
        finally:
            supposing.suspend()
