"""The part of reservations in a scheduler: requests draw from slots, and missing slots are claimed."""

from bus import topics
from bus.topics import RESERVATIONS
from bus.worker import WorkerRows, answers, every
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.filling import REFRESH_SECONDS, ReservationFiller
from scheduler_worker.extension import SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler = needs.scheduler
    drawn = DrawnReservations(scheduler.placement.ask(RESERVATIONS), scheduler.source, scheduler.clock)
    filler = ReservationFiller(scheduler, drawn)
    return SchedulerPart(
        narrowings=(drawn,),
        rows=WorkerRows(
            asks=(RESERVATIONS, topics.EDIT_RESERVATION),
            answers=[answers(topics.FILL_RESERVATION, filler.fill)],
            timers=[every(REFRESH_SECONDS, filler.refresh, at_once=True)],
        ),
    )
