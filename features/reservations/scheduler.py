"""The part of reservations in a scheduler: requests draw from slots, and missing slots are claimed."""

from bus.worker import WorkerRows, answers, every
from features.reservations.drawn_reservations import DrawnReservations
from features.reservations.filling import REFRESH_SECONDS, ReservationFiller
from features.reservations.messages import EDIT_RESERVATION, FILL_RESERVATION, RESERVATIONS
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler = needs.scheduler
    drawn = DrawnReservations(scheduler.placement.ask(RESERVATIONS), scheduler.source, scheduler.clock)
    filler = ReservationFiller(scheduler, drawn)
    return SchedulerPart(
        narrowings=(drawn,),
        rows=WorkerRows(
            asks=(RESERVATIONS, EDIT_RESERVATION),
            answers=[answers(FILL_RESERVATION, filler.fill)],
            timers=[every(REFRESH_SECONDS, filler.refresh, at_once=True)],
        ),
    )


PART = ForScheduler(part)
