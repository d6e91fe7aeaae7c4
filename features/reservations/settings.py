"""The settings of reservations."""

from bus.feature import Refuse, SettingsGroup


class ReservationSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"max_{name}"):
    """The largest numbers of reservations. Lowered limits delete nothing."""

    reservations: int = 10_000  # reservations of capacity that have not ended
    reservations_project: int = 1_000  # reservations of one project that have not ended
    reservation_slots: int = 1_000  # instances in one reservation

    def check(self, refuse: Refuse) -> None:
        for name, least in (("reservations", 0), ("reservations_project", 0), ("reservation_slots", 1)):
            if getattr(self, name) < least:
                refuse(f"max_{name}", f"must be at least {least}")
