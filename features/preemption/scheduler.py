"""The part of preemption in a scheduler: the search for victims, and the priority classes."""

from bus import topics
from bus.worker import WorkerRows, answers, every, on
from features.moves.messages import MOVE_REQUESTED
from features.preemption.priorities import PriorityClasses
from features.preemption.victim_search import VictimSearch
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart

REFRESH_SECONDS = 5.0  # between two reads of the priority classes


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    priorities = PriorityClasses(needs.database)
    victims = VictimSearch(priorities, needs.cells)
    return SchedulerPart(
        fallbacks=(victims,),
        offers=(victims,),
        rows=WorkerRows(
            asks=(topics.PREEMPTIONS,),
            consumes=[on(topics.BUILD_PREEMPTED, victims.requeue, emits=[MOVE_REQUESTED])],
            answers=[
                answers(topics.PRIORITIES, priorities.find),
                answers(topics.EDIT_PRIORITY, priorities.edit),
            ],
            timers=[every(REFRESH_SECONDS, priorities.refresh, at_once=True)],
        ),
    )
