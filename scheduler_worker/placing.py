"""Turns build requests into claimed hosts and alternates, many at a time.

A batch goes in rounds: one search and one evaluation per shape of request, used up by the requests of that
shape; then one claim for all. Who was refused looks again in the next round. Nobody is told "no valid host"
before placement has fenced the instances, so a twin delivery can never place what this one has given up.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from bus.clock import Clock
from bus.errors import AnswerRefused, Retry
from bus.messages import (
    BuildRequested,
    CandidatesFound,
    ClaimAnswered,
    ClaimRequested,
    FindCandidates,
    FindProviders,
    HostFailed,
    HostReported,
    ProvidersFound,
    ReleaseAnswered,
    ReleaseRequested,
)
from bus.protocol import Ask
from bus.vocabulary import (
    Claimed,
    ClaimResult,
    Contended,
    Held,
    Refused,
    Retired,
)
from scheduler_worker.at_once import together
from scheduler_worker.core.former_policy import FormerPolicy as ChoicePolicy
from scheduler_worker.core.funnel import Funnel
from scheduler_worker.core.host import Host
from scheduler_worker.core.ranking import Pick, Ranking, rank
from scheduler_worker.core.request import Unreadable, question_of
from scheduler_worker.ending import UNHEARD_SECONDS, Ending, Unexpected
from scheduler_worker.hosts import GRACE, HostBook
from scheduler_worker.order import Order, Verdict
from scheduler_worker.pending import PendingChoice, PendingChoices
from scheduler_worker.waiting import PATIENCE, Waiting

Claims = Callable[[Sequence[ClaimRequested]], Awaitable[Sequence[ClaimAnswered]]]

PAGE = 256  # candidates asked for at a time
FEW_WAYS = 16  # of using one tree, looked at while several builds look for room
BATCH_BYTES = 16 * 1024 * 1024  # of flavors, images and metadata that a batch says; one request always goes
ALL_WAYS = 2048  # of using trees, at a time, when all are looked at: as many of one tree as one answer holds
PAGES_OF_ALL_WAYS = 64
ROUNDS = 5  # how often a batch looks again at once, before its losers wait
CHOICES = 3  # hosts named in one claim, best first


class Scheduler:
    """The placing loop, and what it remembers between batches: what hosts say, and what it has chosen."""

    def __init__(
        self,
        candidates: Ask[FindCandidates, CandidatesFound],
        claim_many: Claims,
        release: Ask[ReleaseRequested, ReleaseAnswered],
        providers: Ask[FindProviders, ProvidersFound],
        policy: ChoicePolicy | None = None,
        clock: Clock | None = None,
        *,
        page: int = PAGE,
        patience: float = PATIENCE,
        grace: float = GRACE,
        unheard_for: float = UNHEARD_SECONDS,
    ) -> None:
        self.policy = policy or ChoicePolicy()
        self.clock = clock or Clock()
        self.book = HostBook(self.clock.monotonic(), grace)
        self.pending = PendingChoices()
        self._candidates = candidates
        self._claim_many = claim_many
        self._page = page
        self.waiting = Waiting(self.clock, patience)
        self.ending = Ending(release, providers, self.waiting, self.clock, unheard_for)

    async def opened(self) -> None:
        self.book.opened(self.clock.monotonic())

    async def hear(self, report: HostReported) -> None:
        self.book.hear(report, self.clock.monotonic())

    async def hear_of_failure(self, failure: HostFailed) -> None:
        if failure.ours:  # what was the request's fault says nothing of the host
            self.book.failed(failure.root, self.clock.monotonic())

    async def place_many(self, requests: Sequence[BuildRequested]) -> list[Verdict]:
        """A host for each of these requests, or the reason why there is none."""
        self.book.listened(self.clock.monotonic())
        orders = [Order(request) for request in requests]
        self._put_off(orders)
        try:
            for _ in range(ROUNDS):
                await self._choose([order for order in orders if order.open])
                chosen = [order for order in orders if order.picks]
                if not chosen:
                    break
                await self._claim(chosen)
        finally:
            for order in orders:
                self._forget(order)
        for order in orders:
            if order.open:
                self.waiting.obstructed(order)
        await self.ending.end([order for order in orders if order.reason and order.instances])
        for order in orders:
            if order.again is None:
                self.waiting.over(order)
        return [order.verdict for order in orders]

    def _put_off(self, orders: Sequence[Order]) -> None:
        """What would be said of all of these at once must not be more than a process has room for."""
        room = BATCH_BYTES
        for order in orders:
            if order.bytes > room and room < BATCH_BYTES:
                order.again = Retry(
                    after=self.clock.chance.uniform(0.1, 0.5), why="other large requests go first"
                )
            else:
                room -= order.bytes

    # Choosing

    async def _choose(self, orders: Sequence[Order]) -> None:
        """Hosts for all of these, one search for each shape."""
        shapes: dict[Any, list[Order]] = {}
        for order in orders:
            shapes.setdefault(self.policy.shape(order.request), []).append(order)
        await together([self._search(alike) for alike in shapes.values()])

    async def _search(self, alike: list[Order]) -> None:
        """Hosts for requests of one shape. In the end all ways to use a tree are tried."""
        first = len(alike) == 1 and len(alike[0].instances) == 1 and not alike[0].refused
        try:
            funnel, waiting = await self._look_through(alike, 1 if first else FEW_WAYS)
            if waiting and funnel.cut:
                funnel, waiting = await self._look_through(waiting, 0)
        except (Unreadable, AnswerRefused) as problem:
            for order in alike:
                self._give_up(order, str(problem))
            return
        for order in waiting:
            order.obstacle = funnel.reason(order.request, self.book.cells, self.book.zones, order.refusals)
            if not funnel.may_pass:
                self._give_up(order, order.obstacle)

    async def _look_through(self, alike: list[Order], per_host: int) -> tuple[Funnel, list[Order]]:
        """Page by page until everyone has his hosts; who has not, has none."""
        funnel, request = Funnel(self.pending.taken, per_host), alike[0].request
        for order in alike:
            order.funnel = funnel
        question = question_of(request, self._page if per_host else ALL_WAYS, per_host)
        waiting, pages = alike, 0
        while True:
            found = await self._candidates(question)
            waiting = self._hand_out(funnel, request, found, waiting)
            pages += 1
            if not waiting or found.more is None or (not per_host and pages == PAGES_OF_ALL_WAYS):
                break
            question = msgspec.structs.replace(question, after=found.more)
        if any(order.picks for order in waiting):
            waiting = self._share_again(funnel, waiting)
        return funnel, waiting

    def _hand_out(
        self, funnel: Funnel, request: BuildRequested, found: CandidatesFound, waiting: Sequence[Order]
    ) -> list[Order]:
        """Share one page's hosts out; who is still without. Nothing is awaited here, for answers age."""
        now = self.clock.monotonic()
        self.pending.seen(found.seen, now)
        hosts = self._hosts(funnel, found, now)
        ranking = rank(request, hosts, self.policy, request.request)
        funnel.add(found, hosts, ranking)
        return [order for order in waiting if not self._pick(order, ranking, now)]

    def _hosts(self, funnel: Funnel, found: CandidatesFound, now: float) -> list[Host]:
        """The hosts of a page. The ways to use one come one after the other."""
        book, taken, rooms = self.book, self.pending.taken, funnel.rooms
        hosts: list[Host] = []
        trees: list[Host] = []
        for candidate in found.candidates:
            root = candidate.root
            several = bool(candidate.rooms) or len(candidate.allocations) > 1
            if several:
                rooms.add(candidate)
                if trees and trees[-1].root == root:
                    trees[-1].ways.append(candidate)
                    continue
            host = Host(
                candidate,
                book.state(root),
                book.down(candidate.agent, now),
                book.recent(root, now),
                taken(root),
            )
            hosts.append(host)
            if several:
                host.rooms, host.ways = rooms, [candidate]
                trees.append(host)
        for tree in trees:
            tree.taken = rooms.taken_at(tree.ways)
        return hosts

    def _pick(self, order: Order, ranking: Ranking, now: float) -> bool:
        """Hosts from this ranking for the instances that have none; have all one now?"""
        for pick in order.pick(ranking, CHOICES):
            order.entries.append(self.pending.enter(pick.way.allocations, now))
        return order.ready

    def _share_again(self, funnel: Funnel, waiting: Sequence[Order]) -> list[Order]:
        """What is too little for all instances of one order may be enough for those behind it."""
        for order in waiting:
            order.put_back()
            self._forget(order)
        now = self.clock.monotonic()
        without = []
        for order in waiting:
            if not any(self._pick(order, ranking, now) for ranking in funnel.rankings):
                order.put_back()
                self._forget(order)
                without.append(order)
        return without

    def _give_up(self, order: Order, reason: str) -> None:
        self._forget(order)
        order.fail(reason)

    def _forget(self, order: Order) -> None:
        """What was chosen for it is free again."""
        for entry in order.entries:
            self.pending.drop(entry)
        order.entries, order.picks = [], []

    # Claiming

    async def _claim(self, orders: Sequence[Order]) -> None:
        """Claim what was chosen, all orders at once, and see what came of each."""
        asked = [
            (order, order.picks, order.entries, ClaimRequested(claims=order.claims())) for order in orders
        ]
        for order in orders:  # without an answer nobody knows what came of them: their entries time out
            order.picks, order.entries = [], []
        answers = await self._answers([question for *_, question in asked])
        now = self.clock.monotonic()
        elsewhere: list[Unexpected] = []
        for (order, picks, entries, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, AnswerRefused):
                results: Sequence[ClaimResult] = ()
                order.fail(str(answer))
            else:
                results = answer.results
            claimed = [result for result in results if isinstance(result, Claimed)]
            if results and len(claimed) == len(order.instances):
                self._claimed(order, picks, entries, claimed, now)
                continue
            for entry in entries:
                self.pending.drop(entry)
            if any(isinstance(result, Held | Retired) for result in results):
                elsewhere += self._sort_out(order, results)
            else:
                self._refused(order, picks, results)
        await self.ending.settle(elsewhere)

    async def _answers(self, questions: list[ClaimRequested]) -> Sequence[ClaimAnswered | AnswerRefused]:
        """One answer each. A question that placement cannot take fails the lot: then each by itself."""
        try:
            return await self._claim_many(questions)
        except AnswerRefused as problem:
            if len(questions) == 1:
                return [problem]
        return [answer for question in questions for answer in await self._answers([question])]

    def _claimed(
        self,
        order: Order,
        picks: list[Pick],
        entries: list[PendingChoice],
        claimed: list[Claimed],
        now: float,
    ) -> None:
        choices = [pick.choices[result.choice] for pick, result in zip(picks, claimed, strict=True)]
        beside = {host.root for host, _ in choices}
        instances, order.instances = order.instances, []
        for instance, choice, pick, entry, result in zip(
            instances, choices, picks, entries, claimed, strict=True
        ):
            host, way = choice
            if result.choice:
                self.pending.drop(entry)
                entry = self.pending.enter(way.allocations, now)
            self.book.chose(host.root, now)
            self.pending.confirm(entry, result.number)
            order.place(instance, choice, pick, result, beside)

    def _refused(self, order: Order, picks: list[Pick], results: Sequence[ClaimResult]) -> None:
        """Nothing was claimed: next round, beside the hosts that are full or gone."""
        for pick, result in zip(picks, results, strict=False):
            if isinstance(result, Contended):
                self.waiting.contended(order, "its claim is contended")
            elif isinstance(result, Refused):
                order.turned_down(pick, result.refusals)
        order.obstacle = f"every host that would do was taken meanwhile: {'; '.join(order.refusals)}"

    def _sort_out(self, order: Order, results: Sequence[ClaimResult]) -> list[Unexpected]:
        """It was delivered before: some instances hold hosts or have ended. The others go on."""
        order.obstacle = "its other instances were placed or ended before"
        instances, order.instances = order.instances, []
        return [(order, instance, result) for instance, result in zip(instances, results, strict=True)]
