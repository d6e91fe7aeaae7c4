"""Evaluates recorded requests with the present policy and with a changed one, on the present hosts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from bus.decisions import Decision
from bus.errors import NOT_JSON
from bus.messages import BuildRequested
from bus.vocabulary import Allocations, Id, cause_of
from features.policies.messages import PolicyTried, TrialChoice, TrialPolicy, TrialResult, TryPolicy
from features.what_if.messages import WhatIf, WhatIfAnswered
from features.what_if.questions import PATIENCE, Supposed, WhatIfs
from scheduler_worker.extension import Alternative, BadChoice, ChoicePolicy, Order

TRIES = 3  # attempts to evaluate a request with both policies on the same state of the hosts

_options = msgspec.json.Decoder(dict[str, Any]).decode


class Removed(NamedTuple):
    """Why requests that use only some held capacity get no host: the trial supposes it to be removed."""

    why: str
    code: str  # reason code


class Side:
    """The present policy or the policy on trial: how it chooses hosts, with its hypothetical choices. What
    else a trial supposes is added before the first choice; the steps of `what_ifs` follow each choice.
    """

    def __init__(self, what_ifs: WhatIfs) -> None:
        self.what_ifs = what_ifs
        self.free: list[Allocations] = []  # counts as free
        # id of held capacity (`Restriction`) → why requests that use only this capacity get no host
        self.removed: dict[Id, Removed] = {}
        # requests whose instances get hosts before all others, each with what it is, for users
        self.first: list[tuple[BuildRequested, str]] = []

    async def begin(self) -> str:
        """Choose the hosts of the first requests; return why too few hosts fit, or "" on success."""
        self._supposed = self.what_ifs.supposing(self.free)
        for request, name in self.first:
            _, answer = await self._chosen(request)
            if not answer.fits:
                return f"no hosts for {name}: {_why(answer)}"
        return ""

    async def choice(self, request: BuildRequested) -> TrialChoice:
        before = self._supposed.several
        order, answer = await self._chosen(request)
        self._supposed.forget(before)
        for suppose in self.what_ifs.steps:
            if not answer.refusal:
                supposed = Supposed(WhatIf(request=request, replacing=True), order, answer)
                answer = (await suppose(supposed)).answer
        if not answer.fits:
            return TrialChoice(why=_why(answer), code=answer.decision.code)
        placed = sorted(answer.placed, key=lambda there: there.root)
        roots, hosts = ([getattr(there, name) for there in placed] for name in ("root", "host"))
        return TrialChoice(roots=tuple(roots), hosts=tuple(hosts), replaces=len(answer.replaced))

    async def _chosen(self, request: BuildRequested) -> tuple[Order, WhatIfAnswered]:
        [order] = await self.what_ifs.scheduler.resolved([request])
        if order.verdict.invalid:
            unreadable = Decision(code="unreadable")
            return order, WhatIfAnswered(fits=False, refusal=order.verdict.invalid, decision=unreadable)
        kept = [attempt for attempt in order.attempts if self._removed(attempt) is None]
        if not kept and (removed := next(filter(None, map(self._removed, order.attempts)), None)):
            refused = WhatIfAnswered(fits=False, refusal=removed.why, decision=Decision(code=removed.code))
            return order, refused
        order = msgspec.structs.replace(order, attempts=tuple(kept))
        answer, order = await self.what_ifs.chosen(order, 1, self._supposed)
        return order, answer

    def _removed(self, attempt: Sequence[Alternative]) -> Removed | None:
        drawn = (each.restriction.id for each in attempt if each.restriction is not None)
        return next((self.removed[id_] for id_ in drawn if id_ in self.removed), None)


# Adds what a trial supposes, given as JSON, to the side of the present policy and to the one on trial.
SupposeTrial = Callable[[str, Side, Side], Awaitable[None]]


class PolicyTrials:
    """Answers which hosts requests would get with another policy. What-if questions wait until a trial has
    ended. Joins of this feature add to `supposing` what else a trial can suppose, by subject.
    """

    def __init__(self, what_ifs: WhatIfs) -> None:
        self._what_ifs = what_ifs
        self.supposing: dict[str, SupposeTrial] = {}

    async def answer(self, question: TryPolicy) -> PolicyTried:
        tried = question.policy
        try:
            policy = tried_policy(self._what_ifs.scheduler.policy, tried)
        except BadChoice as problem:
            return PolicyTried(refusal=cause_of(str(problem)))
        if unknown := [subject for subject in tried.supposes if subject not in self.supposing]:
            return PolicyTried(refusal=f"changes of {', '.join(unknown)} are not tried here")
        if len(tried.supposes) > 1:
            several = " and of ".join(tried.supposes)
            return PolicyTried(refusal=f"changes of {several} are tried one at a time")
        try:
            async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
                present, trial = await self._sides(policy, tried)
                if why := await present.begin() or await trial.begin():
                    return PolicyTried(refusal=cause_of(why))
                results = [await self._both(request, present, trial) for request in question.requests]
                return PolicyTried(results=tuple(results))
        except TimeoutError:
            return PolicyTried(refusal=f"there was no answer within {PATIENCE:g} s")
        except NOT_JSON as problem:
            return PolicyTried(refusal=cause_of(f"what the trial supposes cannot be read: {problem}"))

    async def _sides(self, policy: ChoicePolicy, tried: TrialPolicy) -> tuple[Side, Side]:
        scheduler = self._what_ifs.scheduler
        present, trial = Side(WhatIfs(scheduler)), Side(WhatIfs(scheduler.with_policy(policy)))
        for subject, text in tried.supposes.items():
            await self.supposing[subject](text, present, trial)
        return present, trial

    async def _both(self, request: BuildRequested, present: Side, trial: Side) -> TrialResult:
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
    return answer.refusal or next(iter((*answer.notes, *last)), "no host fits")
