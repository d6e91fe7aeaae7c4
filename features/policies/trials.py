"""Evaluates recorded requests with the present policy and with a changed one, on the present hosts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bus.decisions import Decision
from bus.errors import NOT_JSON
from bus.messages import BuildRequested
from bus.vocabulary import Allocations, Id, cause_of
from features.policies.messages import PolicyTried, TrialChoice, TrialPolicy, TrialResult, TryPolicy
from features.preemption.priorities import Priorities
from features.preemption.victim_search import VictimSearch
from features.reservations.messages import RESERVATIONS, FindReservations, every_reservation
from features.waiting.messages import priority_of
from features.what_if.messages import WhatIfAnswered
from features.what_if.preempting import WhatIfsPreempting
from features.what_if.questions import PATIENCE, WhatIfs
from features.what_if.supposing import Supposing
from scheduler_worker.extension import BadChoice, ChoicePolicy, Order

TRIES = 3  # attempts to evaluate a request with both policies on the same state of the hosts
_NO_RESERVATION = "reservation"  # reason code if the trial supposes the request's reservation to be removed

_options = msgspec.json.Decoder(dict[str, Any]).decode


class _Side:
    """The present policy or the policy on trial: how it chooses hosts, with its hypothetical reservations."""

    def __init__(
        self, what_ifs: WhatIfs, supposed: Supposing, removed: Sequence[Id], victims: VictimSearch | None
    ) -> None:
        self._what_ifs = what_ifs
        self._supposed = supposed
        self._removed = removed
        self._preempting = WhatIfsPreempting(what_ifs, victims) if victims is not None else None

    async def reserve(self, request: BuildRequested) -> str:
        """Choose hosts for a hypothetical reservation; return why too few hosts fit, or "" on success."""
        answer = await self._answer(request)
        slots = f"all {len(request.instances)} slots of reservation {request.flavor.name}"
        return "" if answer.fits else f"no hosts for {slots}: {_why(answer)}"

    async def choice(self, request: BuildRequested) -> TrialChoice:
        before = self._supposed.several
        answer = await self._answer(request)
        self._supposed.forget(before)
        if (
            priority_of(request.parts)
            and not answer.fits
            and not answer.refusal
            and self._preempting is not None
        ):
            answer = await self._preempting.preempting(request, answer, limited=False)
        if not answer.fits:
            return TrialChoice(why=_why(answer), code=answer.decision.code)
        placed = sorted(answer.placed, key=lambda there: there.root)
        roots, hosts = ([getattr(there, name) for there in placed] for name in ("root", "host"))
        return TrialChoice(roots=tuple(roots), hosts=tuple(hosts), preempts=len(answer.victims))

    async def _answer(self, request: BuildRequested) -> WhatIfAnswered:
        [order] = await self._what_ifs.scheduler.resolved([request])
        order = self._without_removed(order)
        if order.verdict.invalid or not order.attempts:
            refusal = order.verdict.invalid or "its reservation is removed"
            code = "unreadable" if order.verdict.invalid else _NO_RESERVATION
            return WhatIfAnswered(fits=False, refusal=refusal, decision=Decision(code=code))
        answer, _ = await self._what_ifs.chosen(order, 1, self._supposed)
        return answer

    def _without_removed(self, order: Order) -> Order:
        kept = tuple(
            attempt
            for attempt in order.attempts
            if not any((r := each.restriction) is not None and r.id in self._removed for each in attempt)
        )
        return msgspec.structs.replace(order, attempts=kept)


class PolicyTrials:
    """Answers which hosts requests would get with another policy. What-if questions wait until a trial has
    ended.
    """

    def __init__(self, what_ifs: WhatIfs, victims: VictimSearch | None) -> None:
        self._what_ifs = what_ifs
        self._victims = victims

    async def answer(self, question: TryPolicy) -> PolicyTried:
        tried = question.policy
        try:
            policy = tried_policy(self._what_ifs.scheduler.policy, tried)
        except BadChoice as problem:
            return PolicyTried(refusal=cause_of(str(problem)))
        if tried.priorities is not None and self._victims is None:
            return PolicyTried(refusal="changes of priorities are tried on the present hosts only")
        if tried.priorities is not None and (tried.without_reservations or tried.reserves):
            return PolicyTried(refusal="changes of priorities and of reservations are tried one at a time")
        try:
            async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
                present, trial = await self._sides(policy, tried)
                for request in tried.reserves:
                    if why := await trial.reserve(request):
                        return PolicyTried(refusal=cause_of(why))
                results = [await self._both(request, present, trial) for request in question.requests]
                return PolicyTried(results=tuple(results))
        except TimeoutError:
            return PolicyTried(refusal=f"there was no answer within {PATIENCE:g} s")

    async def _sides(self, policy: ChoicePolicy, tried: TrialPolicy) -> tuple[_Side, _Side]:
        what_ifs, victims, tried_victims = self._what_ifs, None, None
        scheduler = what_ifs.scheduler.with_policy(policy)
        if tried.priorities is not None and self._victims is not None:
            victims = self._victims
            tried_victims = victims.on_trial(Priorities(tried.priorities))
        trial, removed, free = WhatIfs(scheduler), tried.without_reservations, list[Allocations]()
        if removed:
            ask = scheduler.placement.ask(RESERVATIONS)
            found = await every_reservation(ask, FindReservations(ids=removed))
            free = [slot.held for slots in found.slots.values() for slot in slots if slot.held]
        present = _Side(what_ifs, what_ifs.supposing(), (), victims)
        return present, _Side(trial, trial.supposing(free), removed, tried_victims)

    async def _both(self, request: BuildRequested, present: _Side, trial: _Side) -> TrialResult:
        source = self._what_ifs.scheduler.source
        for _ in range(TRIES):
            seen = source.seen
            result = TrialResult(present=await present.choice(request), trial=await trial.choice(request))
            if source.seen == seen:
                break
        return result


def tried_policy(present: ChoicePolicy, tried: TrialPolicy) -> ChoicePolicy:
    """Return the policy on trial, with the cells and the operator's own functions of the present one. Raise
    BadChoice if a name or an option is unknown.
    """
    options: dict[str, Mapping[str, Any]] = {}
    for name, text in tried.options.items():
        try:
            options[name] = _options(text)
        except NOT_JSON as problem:
            raise BadChoice(f"the options are no JSON object: {problem}", name) from None
    policy = ChoicePolicy.from_names(
        tried.filters or None,
        tried.weighers or None,
        options=options,
        custom=present.custom,
        profile=present.profile,
    )
    return replace(policy, cells=present.cells, subset=max(tried.subset, 1), near=tried.near)


def _why(answer: WhatIfAnswered) -> str:
    """Return why no host fits: the refusal, or the filter or requirement that rejected the last remaining
    hosts.
    """
    last: Sequence[str] = [each.constraint for each in answer.decision.removals if not each.left]
    return answer.refusal or answer.no_preemption or next(iter(last), "no host fits")
