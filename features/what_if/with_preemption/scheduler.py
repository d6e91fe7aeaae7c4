"""Answers what-if questions with the instances that a request would preempt if it fits nowhere."""

from collections import Counter
from dataclasses import replace

from msgspec import structs

from bus.worker import WorkerRows
from features.preemption.core.preempting_claims import Replaces
from features.preemption.messages import PREEMPTIONS, FindPreemptions, Victim
from features.preemption.victim_search import VictimSearch
from features.waiting.messages import priority_of
from features.what_if.messages import PlacedThere, ReplacedInstance
from features.what_if.questions import Supposed, WhatIfs
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


class SupposedPreemption:
    """Supposes that a request which fits nowhere preempts instances. With `limited`, the remaining preemption
    budget of its project must permit the victims.
    """

    def __init__(self, what_ifs: WhatIfs, search: VictimSearch, *, limited: bool = True) -> None:
        self._what_ifs = what_ifs
        self._search = search
        self._limited = limited

    async def suppose(self, supposed: Supposed) -> Supposed:
        """Replace the answer about a request that fits nowhere, if the question asks for it and the request
        has a priority. The answer has the instances that the request would preempt, or a note why it preempts
        none.
        """
        request, is_asked = supposed.question.request, supposed.question.replacing
        if (
            supposed.answer.fits
            or not is_asked
            or not supposed.names_others
            or not priority_of(request.parts)
        ):
            return supposed
        scheduler = self._what_ifs.scheduler
        [order] = await scheduler.resolved([request])
        if order.verdict.invalid:
            return supposed
        permitted_by = self._search.class_of(request)
        if permitted_by is None:
            no_class = f"no class permits priority {priority_of(request.parts)} to preempt"
            return _without(supposed, self._search.why_barred(request) or no_class)
        found = await self._search.find(order, scheduler, self._what_ifs.supposing())
        if isinstance(found, str):
            return _without(supposed, found)
        # each victim once: instances placed on one host have the same victims
        replaced = [part for pick in found.picks for part in pick.parts if isinstance(part, Replaces)]
        victims = tuple({victim.build: victim for part in replaced for victim in part.victims}.values())
        used = await self._used(request.project) if permitted_by.budget and self._limited else 0
        if self._limited and 0 < permitted_by.budget < used + len(victims):
            several = f"{len(victims)} more instances" if used else f"{len(victims)} instances"
            budget = f"the project's budget of {permitted_by.budget} in one hour"
            return _without(supposed, f"{several} would exceed {budget}, {used} used")
        instances = Counter(pick.root for pick in found.picks)
        ways = {pick.root: pick.choices[0] for pick in found.picks}
        placed = [
            PlacedThere(root=root, host=way.host, cell=way.cell, zone=way.zone, instances=instances[root])
            for root, way in ways.items()
        ]
        supposed = supposed.having(fits=True, placed=tuple(placed), replaced=tuple(map(_replaced, victims)))
        order = structs.replace(order, picks=found.picks, attempt=found.attempt or 0)
        return replace(supposed, order=order)

    async def _used(self, project: str) -> int:
        """Return how many instances the project has preempted within the period of its budget."""
        found = await self._what_ifs.scheduler.placement.ask(PREEMPTIONS)(FindPreemptions(project=project))
        return found.used.get(project, 0)


def _without(supposed: Supposed, why: str) -> Supposed:
    return supposed.having(notes=(*supposed.answer.notes, f"no preemption: {why}"))


def _replaced(victim: Victim) -> ReplacedInstance:
    then = "shelved, and placed again later" if victim.requeue else "deleted"
    return ReplacedInstance(build=victim.build, says=f"of priority {victim.priority}: {then}")


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    what_ifs = needs.of(WhatIfs)
    what_ifs.steps.append(SupposedPreemption(what_ifs, needs.of(VictimSearch)).suppose)
    return SchedulerPart(rows=WorkerRows(asks=(PREEMPTIONS,)))


PART = ForScheduler(part)
