"""The table and the records of hosts, as `berth host list` and `berth top hosts` print them."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth.kit.listing import PlainTable, Ranked, plain_table
from berth.kit.times import age_text
from berth.operations.host_summaries import HostSummary, Use
from bus.clock import moment_text
from bus.domains import BUILT_IN_LEVELS
from bus.masking import printable

# resource class → title of its column
CLASSES = {"VCPU": "vcpu", "MEMORY_MB": "memory", "DISK_GB": "disk"}

_WIDE = ("other", "agent", "zone", "labels", "capabilities", "uuid")


def share(use: Use | None) -> Ranked | str:
    """Return the cell with the used share of a resource class."""
    return "-" if use is None else Ranked(str(use), use.share)


def others_text(use: Mapping[str, Use]) -> str:
    """Return the used shares of the resource classes that have no column, in one text."""
    return ", ".join(f"{name} {use[name]}" for name in sorted(use.keys() - CLASSES.keys()))


def use_facts(use: Mapping[str, Use]) -> dict[str, dict[str, int]]:
    """Return the use of resource classes as a JSON object."""
    return {name: {"used": use[name].used, "capacity": use[name].capacity} for name in sorted(use)}


def hosts_table(hosts: Sequence[HostSummary], now: float) -> PlainTable:
    """Return a table of hosts; `now` is the time to which the ages of heartbeats refer."""
    rows = []
    for host in hosts:
        root, standing, known = host.root, host.standing, host.capabilities
        since = f" since {moment_text(standing.since)}" if standing.since else ""
        age, levels = now - known.heard, sorted(root.labels.keys() - BUILT_IN_LEVELS)
        rows.append((
            root.host, root.cell, standing.state,
            *(share(host.use.get(class_)) for class_ in CLASSES),
            "-" if host.instances is None else host.instances,
            Ranked(age_text(age), age) if known.heard else "-",
            f"{standing.why}{since}" or "-",
            others_text(host.use) or "-", root.agent, root.zone or "-",
            ", ".join(f"{level}={root.labels[level]}" for level in levels) or "-",
            printable(known.summary) or "-", root.id,
        ))  # fmt: skip
    titles = ("host", "cell", "state", *CLASSES.values(), "instances", "heartbeat", "problem", *_WIDE)
    return plain_table(titles, rows, folded=("problem", "capabilities", "other", "labels"), wide=_WIDE)


def host_facts(host: HostSummary) -> dict[str, Any]:
    """Return a host as a JSON object."""
    root, standing, known = host.root, host.standing, host.capabilities
    return {
        "host": root.host, "uuid": root.id, "cell": root.cell, "agent": root.agent, "zone": root.zone,
        "labels": root.labels, "state": standing.state, "why": standing.why, "since": standing.since or None,
        "used": use_facts(host.use),
        "instances": host.instances, "heartbeat": known.heard or None,
        "hypervisor": known.hypervisor, "hypervisor_version": known.version, "driver": known.driver,
        "agent_version": known.agent_version, "moves": known.moves, "capabilities": known.capabilities,
    }  # fmt: skip
