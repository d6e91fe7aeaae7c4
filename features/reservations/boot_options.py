"""The option of build requests for a reservation."""

from dataclasses import dataclass

from msgspec import structs

from berth.kit import WHERE, BadSetting, BootOptionsPart, option
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from control_room.kit import FormField, RequestField
from features.reservations.edits import reservation_named
from features.reservations.messages import ReservationPart, reservation_of


@dataclass(frozen=True, kw_only=True)
class ReservationOptions:
    reservation: str = option("", "Only in this reservation.", metavar="NAME|UUID", panel=WHERE)

    def requested(self, request: BuildRequested) -> BuildRequested:
        """Return the request; raise BadSetting if options and hints both name a reservation."""
        if self.reservation and reservation_of(request.parts):
            raise BadSetting("--reservation and --hint reservation= both name one")
        return request

    async def resolved(self, bus: Bus, request: BuildRequested) -> BuildRequested:
        """Return the request within the reservation that the option names."""
        if not self.reservation:
            return request
        found = await reservation_named(bus, self.reservation, request.project)
        part = ReservationPart(reservation=found.reservations[0].id)
        return structs.replace(request, parts=request.parts.having(part))


PART = BootOptionsPart(
    ReservationOptions,
    (
        RequestField(
            FormField(name="reservation", label="Reservation, name or id"),
            lambda request: reservation_of(request.parts) or "",
        ),
    ),
)
