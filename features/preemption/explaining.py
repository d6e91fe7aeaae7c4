"""Explains in `berth why` which instances a build preempted, and which build preempted it."""

from collections.abc import Sequence

from berth.kit import BuildExplanation, ExplainingPart, Happening, ask_cells
from bus.clock import moment_text
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.queries import BuildStands
from features.preemption.messages import PREEMPTIONS, FindPreemptions, Preemption

SECONDS = 5.0  # time limit for placement's answer


async def reasons(
    bus: Bus, id_: str, stands: Sequence[BuildStands], cells: Sequence[str]
) -> Sequence[BuildExplanation]:
    """Return an explanation of each preemption by the build or request, and of each in which it was deleted
    or shelved.
    """
    find = bus.asker(PREEMPTIONS, timeout=SECONDS)
    found, _ = await ask_cells(["placement"], lambda _: find(FindPreemptions(by=(id_,), victims=(id_,))))
    return [
        BuildExplanation(_preempted(each, id_), each, style="yellow", at=each.at)
        for answer in found.values()
        for each in answer.preemptions
    ]


async def happened(
    bus: Bus, id_: str, stands: Sequence[BuildStands], cells: Sequence[str]
) -> Sequence[Happening]:
    """Return when the build or request preempted instances, or was preempted."""
    explained = await reasons(bus, id_, stands, cells)
    return [Happening(each.at, each.line.strip()) for each in explained]


def _preempted(found: Preemption, id_: str) -> str:
    at = moment_text(found.at)
    if found.by == id_:
        return f"  preempted {found.victim.build} (priority {found.victim.priority}) at {at}"
    project = printable(found.project)
    return f"  preempted by {found.by} of project {project} (priority {found.priority}) at {at}"


PART = ExplainingPart(reasons=reasons, happened=happened)
