"""Runs the operator's hook that switches a host off before its instances are evacuated."""

from collections.abc import Sequence

from compute_sim.extension import run_hook
from features.maintenance.messages import HostEvacuation


async def call_hook(command: Sequence[str], limit: float, dead: HostEvacuation) -> tuple[bool, str]:
    """Run the hook with the host's name as last argument; return whether it ended with 0, and its output.

    After `limit` seconds the hook and its children are killed, and the host counts as not fenced.
    """
    names = {"FENCE_HOST": dead.host, "FENCE_CELL": dead.cell, "FENCE_ROOT": dead.root}
    code, output = await run_hook(command, [dead.host], limit, names)
    return code == 0, output
