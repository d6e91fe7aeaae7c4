"""The part of trials of policies in a scheduler."""

from bus.worker import WorkerRows, answers
from features.policies.messages import TRY_POLICY
from features.policies.trials import PolicyTrials
from features.what_if.questions import WhatIfs
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    trials = PolicyTrials(needs.of(WhatIfs))
    return SchedulerPart(offers=(trials,), rows=WorkerRows(answers=[answers(TRY_POLICY, trials.answer)]))


PART = ForScheduler(part)
