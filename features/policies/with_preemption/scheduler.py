"""Tries requests with other priority classes: with the instances that they would preempt."""

from features.policies.trials import PolicyTrials, Side
from features.policies.with_preemption.subject import SUBJECT, decode
from features.preemption.priorities import Priorities
from features.preemption.victim_search import VictimSearch
from features.what_if.with_preemption.scheduler import SupposedPreemption
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    search = needs.of(VictimSearch)

    async def suppose(classes: str, present: Side, trial: Side) -> None:
        changed = search.on_trial(Priorities(decode(classes)))
        for side, victims in ((present, search), (trial, changed)):
            preemption = SupposedPreemption(side.what_ifs, victims, limited=False)
            side.what_ifs.steps.append(preemption.suppose)

    needs.of(PolicyTrials).supposing[SUBJECT] = suppose
    return SchedulerPart()


PART = ForScheduler(part)
