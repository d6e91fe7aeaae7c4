"""The queries that a scheduler sends to placement and to cells."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bus import claims, quotas, reservations, resources
from bus.groups import FindGroups, GroupsFound
from bus.names import NameEditAnswered, NameEditRequested
from bus.preemption import FindPreemptions, PreemptionsFound
from bus.protocol import Ask
from bus.queries import BuildsFound, FindBuilds, FindInstances, InstancesFound

Claims = Callable[[Sequence[claims.ClaimRequested]], Awaitable[Sequence[claims.ClaimAnswered]]]


@dataclass(frozen=True, kw_only=True)
class PlacementQueries:
    claim_many: Claims
    release: Ask[claims.ReleaseRequested, claims.ReleaseAnswered]
    providers: Ask[resources.FindProviders, resources.ProvidersFound]
    groups: Ask[FindGroups, GroupsFound]
    allocations: Ask[resources.FindAllocations, resources.AllocationsFound]
    usages: Ask[resources.FindUsages, resources.UsagesFound]
    quotas: Ask[quotas.FindQuotas, quotas.QuotasFound]
    edit: Ask[resources.EditRequested, resources.EditAnswered]
    edit_name: Ask[NameEditRequested, NameEditAnswered]
    preemptions: Ask[FindPreemptions, PreemptionsFound]
    edit_reservation: Ask[reservations.ReservationEditRequested, reservations.ReservationEditAnswered]
    reservations: Ask[reservations.FindReservations, reservations.ReservationsFound]


@dataclass(frozen=True, kw_only=True)
class CellQueries:
    builds: Ask[FindBuilds, BuildsFound]
    instances: Ask[FindInstances, InstancesFound]
