"""Evaluates recorded requests with the present policy and with a changed one, on the present hosts."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bus.errors import NOT_JSON
from bus.messages import BuildRequested
from bus.policy_trials import PolicyTried, TrialChoice, TrialPolicy, TrialResult, TryPolicy
from bus.queries import WhatIfAnswered
from bus.vocabulary import MAX_CAUSE
from scheduler_worker.core.policy import BadChoice, ChoicePolicy
from scheduler_worker.what_if import PATIENCE, WhatIfs

TRIES = 3  # evaluations of a request until the hosts do not change between both policies

_options = msgspec.json.Decoder(dict[str, Any]).decode


class PolicyTrials:
    """Answers which hosts requests would get with another policy. What-if questions wait meanwhile."""

    def __init__(self, what_ifs: WhatIfs) -> None:
        self._what_ifs = what_ifs

    async def answer(self, question: TryPolicy) -> PolicyTried:
        try:
            policy = tried_policy(self._what_ifs.scheduler.policy, question.policy)
        except BadChoice as problem:
            return PolicyTried(refusal=str(problem)[:MAX_CAUSE])
        trial = WhatIfs(self._what_ifs.scheduler.with_policy(policy))
        try:
            async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
                results = [await self._both(request, trial) for request in question.requests]
                return PolicyTried(results=tuple(results))
        except TimeoutError:
            return PolicyTried(refusal=f"there was no answer within {PATIENCE:g} s")

    async def _both(self, request: BuildRequested, trial: WhatIfs) -> TrialResult:
        source = self._what_ifs.scheduler.source
        for _ in range(TRIES):
            seen = source.seen
            result = TrialResult(
                present=await _choice(self._what_ifs, request), trial=await _choice(trial, request)
            )
            if source.seen == seen:
                break
        return result


def tried_policy(present: ChoicePolicy, tried: TrialPolicy) -> ChoicePolicy:
    """Return the policy on trial, with the cells and own functions of the present one; raise BadChoice if a
    name or an option is unknown."""
    options: dict[str, Mapping[str, Any]] = {}
    for name, text in tried.options.items():
        try:
            options[name] = _options(text)
        except NOT_JSON as problem:
            raise BadChoice(f"the options are no JSON object: {problem}", name) from None
    return ChoicePolicy.from_names(
        tried.filters or None,
        tried.weighers or None,
        options=options,
        custom=present.custom,
        cells=present.cells,
        subset=max(tried.subset, 1),
        near=tried.near,
    )


async def _choice(what_ifs: WhatIfs, request: BuildRequested) -> TrialChoice:
    [(order, begun)] = await what_ifs.scheduler.resolved([request])
    if begun.refusal:
        return TrialChoice(why=begun.refusal, code="unreadable")
    answer, _ = await what_ifs.chosen(order, 1, what_ifs.supposing())
    if not answer.fits:
        return TrialChoice(why=_why(answer), code=answer.decision.code)
    placed = sorted(answer.placed, key=lambda there: there.root)
    roots, hosts = ([getattr(there, name) for there in placed] for name in ("root", "host"))
    return TrialChoice(roots=tuple(roots), hosts=tuple(hosts))


def _why(answer: WhatIfAnswered) -> str:
    """Return the filter or requirement that rejected the last remaining hosts."""
    last: Sequence[str] = [each.constraint for each in answer.decision.removals if not each.left]
    return answer.refusal or next(iter(last), "no host fits")
