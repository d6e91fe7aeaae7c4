"""Chooses and claims hosts for instances that another system builds, such as Nova.

The queries are placed by the state machine of build requests (`scheduler_worker/core/order.py`). The result
is returned as the reply to the query; no message is published.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from msgspec import structs

from bus.claims import Choice, ConsumerClaim, Held, Retired
from bus.decisions import Decision
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.resources import Provider
from bus.sql.database import Database
from bus.vocabulary import Id
from features.nova.core.rebuild_fit import unfit_image
from features.nova.messages import HostsAnswered, HostsAsked
from scheduler_worker.extension import (
    ComeAgain,
    EndedInstance,
    Order,
    Placing,
    Purpose,
    RuleError,
    Settled,
    decisions,
    events,
)

UNSTORED = 20_000  # decisions waiting to be stored; the oldest are dropped if the database is unreachable


@dataclass(frozen=True)
class SelectPurpose(Purpose):
    """The purpose of orders for instances that another system builds: their ids may be requested again."""

    name: ClassVar[str] = "select"
    retires: ClassVar[bool] = False
    is_external: ClassVar[bool] = True

    # allocations on excluded hosts that an instance keeps in addition to its claim, such as those of an
    # evacuated instance on its lost host
    kept: Mapping[Id, Held] = field(default_factory=dict)

    def claim(self, order: Order, instance: Id, choices: tuple[Choice, ...]) -> ConsumerClaim:
        claim = structs.replace(super().claim(order, instance, choices), client=True)
        if (held := self.kept.get(instance)) is None:
            return claim
        # A provider in both is claimed only once.
        both = [{**choice.allocations, **held.allocations} for choice in choices]
        choices = tuple(
            [structs.replace(choice, allocations=all_) for choice, all_ in zip(choices, both, strict=True)]
        )
        return structs.replace(claim, generation=held.generation, choices=choices)

    def claim_answered(
        self, order: Order, instance: Id, result: Held | Retired, patience: float
    ) -> Order | ComeAgain:
        """Return the order with an instance that holds only excluded hosts to be claimed once more."""
        if isinstance(result, Held) and _excluded_roots(order).issuperset(result.roots):
            purpose = replace(self, kept={**self.kept, instance: result})
            return structs.replace(order, purpose=purpose, instances=(*order.instances, instance))
        return super().claim_answered(order, instance, result, patience)

    def located(
        self, order: Order, instance: Id, held: Held, providers: Mapping[Id, Provider]
    ) -> Settled | EndedInstance | ComeAgain:
        """Return the instance as settled on its new host, without the allocations on excluded hosts."""
        excluded = _excluded_roots(order)
        allocations = {
            id_: resources
            for id_, resources in held.allocations.items()
            if id_ not in providers or providers[id_].root not in excluded
        }
        return super().located(order, instance, structs.replace(held, allocations=allocations), providers)


def _excluded_roots(order: Order) -> frozenset[str]:
    return frozenset(order.preferred.question.not_roots) if order.attempts else frozenset()


class HostSelection:
    """Answers the query `scheduler.select`, and stores its decisions once a second."""

    def __init__(self, scheduler: Placing, database: Database) -> None:
        self._scheduler = scheduler
        self._database = database
        self._made: deque[tuple[BuildRequested, BuildPlaced | BuildUnplaceable]] = deque(maxlen=UNSTORED)

    async def answer_many(self, questions: Sequence[HostsAsked]) -> list[HostsAnswered]:
        """Choose hosts for many questions of Nova together; claim them if the question says so."""
        claims = [question for question in questions if question.do == "claim"]
        ends = iter(await self._scheduler.place([self.begin(question) for question in claims]))
        answers = [
            self._answer(question.request, next(ends))
            if question.do == "claim"
            else await self._check(question.request)
            for question in questions
        ]
        for question, answer in zip(questions, answers, strict=True):
            made = (*answer.placed, *([answer.refused] if answer.refused is not None else ()))
            self._made.extend((question.request, end) for end in made)
        return answers

    async def store(self) -> None:
        """Store the decisions made since the last call in the database, to be shown later."""
        if not self._made:
            return
        made, self._made = self._made, deque(maxlen=UNSTORED)  # later decisions go to the new list
        try:
            async with self._database.write() as tx:
                await decisions.put_selected(tx, made, self._scheduler.clock.now())
        except BaseException:
            self._made = deque([*made, *self._made], maxlen=UNSTORED)
            raise

    def begin(self, question: HostsAsked) -> Order:
        """Return the order for a query for hosts."""
        request = question.request
        [order] = self._scheduler.begin([request], SelectPurpose())
        retried_for = max(order.times.retried_for, question.waited)
        return structs.replace(order, times=structs.replace(order.times, retried_for=retried_for))

    def _answer(self, request: BuildRequested, end: events.End) -> HostsAnswered:
        match end:
            case events.ComeAgain(least=least, most=most, why=why):
                return HostsAnswered(again=self._scheduler.clock.chance.uniform(least, most), why=why)
            case events.DeadLetterRequest(why=why):
                return HostsAnswered(refused=_refused(request, why, Decision(code="claim")))
            case events.TakenOver():
                raise TypeError("a fallback has taken a query for hosts, which does not wait")
            case events.Publish(messages=messages):
                placed = {each.build: each for each in messages if isinstance(each, BuildPlaced)}
                refused = next((each for each in messages if isinstance(each, BuildUnplaceable)), None)
                if refused is None and placed:
                    return HostsAnswered(placed=tuple([placed[build] for build in request.instances]))
                return HostsAnswered(refused=refused or _refused(request, "it has ended", Decision()))

    async def _check(self, request: BuildRequested) -> HostsAnswered:
        """Return a refusal if the new image of a rebuild does not fit on the instance's current host, else an
        empty answer.
        """
        scheduler = self._scheduler
        if not scheduler.source.named(request.forced_host):
            await scheduler.source.fresh()
        [order] = await scheduler.resolved([request])
        if order.verdict.invalid:
            return HostsAnswered(
                refused=_refused(request, order.verdict.invalid, Decision(code="unreadable"))
            )
        now, _ = scheduler.hosts.now()
        why = ""
        for root in order.preferred.question.roots:
            try:
                why = unfit_image(order.preferred, root, scheduler.source, now, scheduler.policy)
            except RuleError as failed:
                return HostsAnswered(refused=_refused(request, str(failed), Decision(code=failed.code)))
            if not why:
                return HostsAnswered()
        return HostsAnswered(refused=_refused(request, why, Decision(code="image")))


def _refused(request: BuildRequested, why: str, decision: Decision) -> BuildUnplaceable:
    return BuildUnplaceable(
        request=request.request, instances=request.instances, reason=why, decision=decision
    )
