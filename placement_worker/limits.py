"""The limits of placement's registries: how many reservations, aggregates and server groups may exist."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RegistryLimits:
    """The largest numbers of objects. Objects that exist already stay if a limit is lowered; two objects that
    are created at the same moment may exceed it by one.
    """

    reservations: int = 10_000
    reservations_of_project: int = 1_000
    slots: int = 1_000  # of one reservation
    aggregates: int = 20_000
    groups: int = 200_000
    groups_of_project: int = 10_000
