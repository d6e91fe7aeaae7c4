"""The part of preemption in a scheduler: the search for victims, and the priority classes."""

from bus.worker import WorkerRows, answers, every
from features.preemption.messages import EDIT_PRIORITY, PREEMPTIONS, PRIORITIES
from features.preemption.priorities import PriorityClasses
from features.preemption.victim_search import VictimSearch
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart

REFRESH_SECONDS = 5.0  # between two reads of the priority classes


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    priorities = PriorityClasses(needs.database)
    victims = VictimSearch(priorities, needs.cells)
    return SchedulerPart(
        fallbacks=(victims,),
        offers=(victims,),
        rows=WorkerRows(
            asks=(PREEMPTIONS,),
            answers=[answers(PRIORITIES, priorities.find), answers(EDIT_PRIORITY, priorities.edit)],
            timers=[every(REFRESH_SECONDS, priorities.refresh, at_once=True)],
        ),
    )


PART = ForScheduler(part)
