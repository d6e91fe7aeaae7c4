"""Explains in `berth why` from which reservation a build drew."""

from collections.abc import Sequence

from berth.kit import BuildExplanation, ExplainingPart, ask_cells
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.queries import BuildStands
from features.reservations.messages import FAILOVER, RESERVATIONS, FindReservations, Reservation

SECONDS = 5.0  # time limit for placement's answer


async def reasons(
    bus: Bus, id_: str, stands: Sequence[BuildStands], cells: Sequence[str]
) -> Sequence[BuildExplanation]:
    """Return an explanation of the reservation from which the instance drew, if it drew from one."""
    find = bus.asker(RESERVATIONS, timeout=SECONDS)
    # A placement of a version without `drawn_by` finds no reservation with this id.
    drawing = FindReservations(drawn_by=id_, ids=(id_,), slots=False)
    found, _ = await ask_cells(["placement"], lambda _: find(drawing))
    return [BuildExplanation(_drawn(each), each) for answer in found.values() for each in answer.reservations]


def _drawn(reservation: Reservation) -> str:
    if reservation.use == FAILOVER:
        return "  draws from the failover headroom"
    owner = f"project {printable(reservation.project)}" if reservation.project else "any project"
    return f"  draws from reservation {printable(reservation.name)} {reservation.id} of {owner}"


PART = ExplainingPart(reasons=reasons)
