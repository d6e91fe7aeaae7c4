"""The problems of maintenance windows and automatic evacuations."""

from berth.kit import ProblemReader, ProblemsPart
from bus.problems import Alert, KnownProblem, ProblemKind, earliest
from control_room.kit import listed
from features.maintenance.messages import (
    MAINTENANCE,
    FindMaintenance,
    HostEvacuation,
    MaintenanceFound,
    every_maintenance,
)

MAINTENANCE_LATE = ProblemKind(
    name="maintenance-late",
    severity="warning",
    says="Hosts of maintenance windows that are not empty in time: {hosts}.",
    consequence="Instances could not be moved, or the remaining time is too short for the remaining moves.",
    do="`berth host maintenance list` and `berth host maintenance show {first}` give the reason for each"
    " host. Cancel"
    " the window, or move or stop the instances.",
    link="/maintenance",
    alert=Alert(
        name="BerthMaintenanceLate",
        expr="max(berth_maintenance_late_hosts) > 0",
        after="1m",
        values={"hosts": "{{ $value }}", "first": "ID"},
    ),
)
EVACUATION_HELD = ProblemKind(
    name="evacuation-held",
    severity="critical",
    says="Not evacuated, because many hosts lost their heartbeats at once: {hosts}.",
    consequence="A network fault is more probable than the failure of all these hosts. Their instances are"
    " left alone.",
    do="Check the network of the cell or rack. If the hosts are dead, `berth host maintenance release"
    " {first}`"
    " lets them be fenced and evacuated.",
    link="/maintenance",
    alert=Alert(
        name="BerthEvacuationHeld",
        expr="max(berth_evacuation_held_hosts) > 0",
        after="1m",
        values={"hosts": "{{ $value }} hosts", "first": "HOST"},
    ),
)
EVACUATION_UNFENCED = ProblemKind(
    name="evacuation-unfenced",
    severity="critical",
    says="Missing hosts that were not confirmed as off: {hosts}.",
    consequence="Without a confirmation that a host is off, its instances are not evacuated. The hook is"
    " called again every minute.",
    do="`berth host maintenance show {first}` has the output of the hook. Switch the host off by hand,"
    " then run"
    " `berth host evacuate`.",
    link="/maintenance",
    alert=Alert(
        name="BerthEvacuationUnfenced",
        expr="max(berth_evacuation_unfenced_hosts) > 0",
        after="1m",
        values={"hosts": "{{ $value }}", "first": "ID"},
    ),
)


def delayed(found: MaintenanceFound) -> list[KnownProblem]:
    """Return the problems of windows and evacuations that are not over."""
    problems = []
    late = [(state.window.id, host) for state in found.windows for host in state.hosts if host.late]
    if late:
        names = listed([host.host for _, host in late])
        since = earliest(host.since for _, host in late)
        problems.append(MAINTENANCE_LATE.problem(names, since, hosts=names, first=late[0][0]))
    for kind, state in ((EVACUATION_HELD, "held"), (EVACUATION_UNFENCED, "unfenced")):
        stopped = [each for each in found.evacuations if each.state == state]
        if stopped:
            problems.append(_stopped(kind, stopped))
    return problems


def _stopped(kind: ProblemKind, evacuations: list[HostEvacuation]) -> KnownProblem:
    names = listed([each.host for each in evacuations])
    first = evacuations[0].id if kind is EVACUATION_UNFENCED else evacuations[0].host
    return kind.problem(names, min(each.missing_since for each in evacuations), hosts=names, first=first)


async def find(reader: ProblemReader) -> list[KnownProblem]:
    return delayed(await every_maintenance(reader.asker(MAINTENANCE), FindMaintenance()))


PART = ProblemsPart(
    kinds=(MAINTENANCE_LATE, EVACUATION_HELD, EVACUATION_UNFENCED), find=find, asks=(MAINTENANCE,)
)
