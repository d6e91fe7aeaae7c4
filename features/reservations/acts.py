"""The acts on reservations."""

from collections.abc import Mapping
from typing import Any

from bus.acts import Act, Requested, describe, sent
from bus.vocabulary import Message
from features.reservations.messages import (
    EDIT_RESERVATION,
    FILL_RESERVATION,
    RESERVATIONS,
    FillReservation,
    FindReservations,
    ReservationEdited,
    ReservationEditRequested,
)


def _reservation_state(message: Any) -> Any:
    return RESERVATIONS, FindReservations(ids=(describe(message).id,), slots=False)


ACTS = (
    Act(
        "reserve", "operator", "reservations and failover headroom", sent(EDIT_RESERVATION, FILL_RESERVATION)
    ),
)
REQUESTED: Mapping[type[Message], Requested] = {
    ReservationEditRequested: Requested(state=_reservation_state, targets=("reservation",)),
    FillReservation: Requested(targets=("reservation",)),
}
DONE = (ReservationEdited,)
