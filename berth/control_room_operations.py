"""Executes the control room's operations on hosts with the functions that the commands also use."""

from berth.kit.host_marks import checked_cause, disabling, enabling, forcing_down
from berth.kit.hosts import host_named
from berth.kit.refusals import operations_refused
from bus.delivery.runner import Bus
from bus.errors import OperationRefused


async def mark_host(bus: Bus, marking: str, root: str, given: str) -> str:
    """Execute an operation on a host (disable, enable, force-down or undo-force-down) with the `given` cause,
    and return the host's new state; raise OperationRefused if it fails or changes nothing.
    """
    with operations_refused():
        cause = checked_cause(given)
        markings = {
            "disable": disabling(cause),
            "enable": enabling(cause),
            "force-down": forcing_down(True),
            "undo-force-down": forcing_down(False),
        }
        before = await host_named(bus, root)
        after = await markings[marking](bus, before)
        if set(after.host.traits) == set(before.traits):
            raise OperationRefused(after.says)
        return after.says
