"""The part of trials of policies in a scheduler."""

from bus import topics
from bus.worker import WorkerRows, answers
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart
from scheduler_worker.policy_trials import PolicyTrials
from scheduler_worker.victim_search import VictimSearch
from scheduler_worker.what_if import WhatIfs


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    trials = PolicyTrials(needs.of(WhatIfs), needs.of(VictimSearch))
    return SchedulerPart(
        offers=(trials,), rows=WorkerRows(answers=[answers(topics.TRY_POLICY, trials.answer)])
    )
