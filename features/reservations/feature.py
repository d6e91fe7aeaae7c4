"""Declares the feature reservations."""

from bus.decisions import OF_THE_WHOLE, ReasonTable
from bus.feature import Feature, PageEntry
from features.reservations.settings import ReservationSettings

FEATURE = Feature(
    name="reservations",
    says="holds capacity for a project or a purpose",
    adds=("messages", "placement", "scheduler", "boot_options", "explaining", "problems", "pages"),
    settings=ReservationSettings,
    commands={"project reservation": "commands"},
    command_groups={
        "project reservation": "Reservations: capacity held for builds of a project"
        " (features/reservations/README.md)."
    },
    pages={"/reservations": PageEntry("Reservations", "Policy")},
    meters=(("features.reservations.filling", "scheduler"),),
    reasons=(
        ReasonTable(
            OF_THE_WHOLE,
            {
                "reservation": "the reservation that the request names has no undrawn slot for it, or is not"
                " active"
            },
        ),
    ),
)
