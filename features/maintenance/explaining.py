"""Explains in `berth why` which maintenance windows and evacuations moved a build."""

from collections.abc import Sequence

from berth.kit import BuildExplanation, ExplainingPart, ask_cells
from bus.delivery.runner import Bus
from bus.queries import BuildStands
from features.maintenance.messages import MAINTENANCE, FindMaintenance
from features.maintenance.operations import reasons_to_leave

SECONDS = 2.0  # without an answer of a scheduler, nothing is explained


async def reasons(
    bus: Bus, id_: str, stands: Sequence[BuildStands], cells: Sequence[str]
) -> Sequence[BuildExplanation]:
    """Return an explanation of each move by a maintenance window or evacuation of the builds `stands`."""
    ask = bus.asker(MAINTENANCE, timeout=SECONDS)
    found, _ = await ask_cells(["scheduler"], lambda _: ask(FindMaintenance(build=id_)))
    for answer in found.values():
        return [BuildExplanation(line) for line in reasons_to_leave(answer, [build.host for build in stands])]
    return ()


PART = ExplainingPart(reasons=reasons)
