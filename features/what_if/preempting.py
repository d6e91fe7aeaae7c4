"""Answers what-if questions with the instances that a request would preempt if it fits nowhere."""

from collections import Counter

from msgspec import structs

from bus.messages import BuildRequested
from features.preemption.core.preempting_claims import Replaces
from features.preemption.messages import PREEMPTIONS, FindPreemptions
from features.preemption.victim_search import VictimSearch
from features.waiting.messages import priority_of
from features.what_if.messages import PlacedThere, WhatIf, WhatIfAnswered
from features.what_if.questions import WhatIfs
from features.what_if.waits import WhatIfWaits
from scheduler_worker.extension import claims_of


class WhatIfsPreempting:
    """Answers what-if questions; on request also with the instances that would be preempted, and with the
    wait of the request.
    """

    def __init__(self, what_ifs: WhatIfs, search: VictimSearch, waits: WhatIfWaits | None = None) -> None:
        self._what_ifs = what_ifs
        self._search = search
        self._waits = waits

    async def answer(self, question: WhatIf) -> WhatIfAnswered:
        answer = await self._what_ifs.answer(question)
        if question.preempt and not answer.fits and not answer.refusal:
            async with self._what_ifs.lock:
                answer = await self.preempting(question.request, answer, claims=question.claims)
        if self._waits is None or question.is_external:
            return answer
        return await self._waits.extended(question.request, answer)

    async def preempting(
        self, request: BuildRequested, answer: WhatIfAnswered, *, limited: bool = True, claims: bool = False
    ) -> WhatIfAnswered:
        """Return the answer about a request that fits nowhere, with the instances that it would preempt, or
        why it preempts none. With `limited`, the project's quota must permit the instances, and its remaining
        preemption budget the victims. With `claims`, the answer has the claims of the instances. The caller
        must hold the lock of `WhatIfs`.
        """
        scheduler = self._what_ifs.scheduler
        [order] = await scheduler.resolved([request])
        if order.verdict.invalid:
            return answer
        permitted_by = self._search.class_of(request)
        if permitted_by is None:
            no_class = f"no class permits priority {priority_of(request.parts)} to preempt"
            return structs.replace(answer, no_preemption=self._search.why_barred(request) or no_class)
        found = await self._search.find(order, scheduler, self._what_ifs.supposing())
        if isinstance(found, str):
            return structs.replace(answer, no_preemption=found)
        # each victim once: instances placed on one host have the same victims
        replaced = [part for pick in found.picks for part in pick.parts if isinstance(part, Replaces)]
        victims = tuple({victim.build: victim for part in replaced for victim in part.victims}.values())
        used = await self._used(request.project) if permitted_by.budget and limited else 0
        if 0 < permitted_by.budget < used + len(victims):
            several = f"{len(victims)} more instances" if used else f"{len(victims)} instances"
            budget = f"the project's budget of {permitted_by.budget} in one hour"
            return structs.replace(answer, no_preemption=f"{several} would exceed {budget}, {used} used")
        instances = Counter(pick.root for pick in found.picks)
        ways = {pick.root: pick.choices[0] for pick in found.picks}
        placed = [
            PlacedThere(root=root, host=way.host, cell=way.cell, zone=way.zone, instances=instances[root])
            for root, way in ways.items()
        ]
        answer = structs.replace(answer, fits=True, placed=tuple(placed), victims=victims)
        order = structs.replace(order, picks=found.picks, attempt=found.attempt or 0)
        if claims:
            answer = structs.replace(answer, claims=claims_of(order, {}, self._what_ifs.scheduler.narrowings))
        return await self._what_ifs.in_quota(answer, order) if limited else answer

    async def _used(self, project: str) -> int:
        """Return how many instances the project has preempted within the period of its budget."""
        found = await self._what_ifs.scheduler.placement.ask(PREEMPTIONS)(FindPreemptions(project=project))
        return found.used.get(project, 0)
