"""The part of maintenance in a scheduler: maintenance windows, and evacuations of dead hosts."""

from bus import topics
from bus.guests import GuestsAsked
from bus.worker import WorkerRows, answers, every, on, prune_period
from features.maintenance.controller import STEP_SECONDS, MaintenanceController, MaintenanceNeeds
from features.maintenance.messages import EDIT_MAINTENANCE, MAINTENANCE
from features.maintenance.quorum import FENCING
from features.maintenance.settings import MaintenanceSettings
from features.moves.plans import MovePlans
from features.moves.supposed_moves import MoveEvaluation
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: MaintenanceSettings) -> SchedulerPart:
    scheduler, keep = needs.scheduler, needs.options.keep
    given = MaintenanceNeeds(
        database=needs.database,
        placement=scheduler.placement,
        cells=needs.cells,
        plans=needs.of(MovePlans),
        source=scheduler.source,
        book=scheduler.book,
        clock=scheduler.clock,
        publish=needs.publish,
        evaluation=next(iter(needs.offers.every(MoveEvaluation)), None),
    )
    controller = MaintenanceController(given, settings)
    return SchedulerPart(
        rows=WorkerRows(
            announces=frozenset({GuestsAsked}),
            consumes=[on(topics.AGENT_GUESTS.at(reply_to=FENCING), controller.quorum.handle, private=True)],
            answers=[answers(MAINTENANCE, controller.find), answers(EDIT_MAINTENANCE, controller.edit)],
            timers=[
                every(STEP_SECONDS, controller.step),
                every(prune_period(keep), lambda: controller.prune(keep)),
            ],
            runs=[controller.dead_hosts.run_fencing],
            stops=[controller.lead.resign],
        )
    )


PART = ForScheduler(part)
