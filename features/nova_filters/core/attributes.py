"""Attributes of hosts by the names that Nova has for them."""

from collections.abc import Callable, Mapping

from bus.reports import HostState
from scheduler_worker.core.extension import HostFacts

Attribute = str | float | bool

_OF_PLACEMENT: Mapping[str, Callable[[HostFacts], Attribute]] = {
    "uuid": lambda host: host.root,
    "host": lambda host: host.host,
    "nodename": lambda host: _node(host),
    "hypervisor_hostname": lambda host: _node(host),
    "cell": lambda host: host.cell,
    "zone": lambda host: host.zone,
    "num_io_ops": lambda host: host.building,
    "failed_builds": lambda host: host.failures,
    "free_ram_mb": lambda host: host.free.get("MEMORY_MB", 0),
    "total_usable_ram_mb": lambda host: host.capacity.get("MEMORY_MB", 0),
    "free_disk_gb": lambda host: host.free.get("DISK_GB", 0),
    "free_disk_mb": lambda host: host.free.get("DISK_GB", 0) * 1024,
    "total_usable_disk_gb": lambda host: host.capacity.get("DISK_GB", 0),
    "vcpus_total": lambda host: host.capacity.get("VCPU", 0),
    "vcpus_used": lambda host: host.capacity.get("VCPU", 0) - host.free.get("VCPU", 0),
}
_OF_ITS_REPORT: Mapping[str, Callable[[HostState], Attribute]] = {
    "num_instances": lambda state: state.instances,
    "enabled": lambda state: state.enabled,
    "load": lambda state: state.load,
    "hypervisor_type": lambda state: state.hypervisor,
    "hypervisor_version": lambda state: state.hypervisor_version,
    "architecture": lambda state: state.architecture,
    "host_ip": lambda state: state.ip,
}


def _node(host: HostFacts) -> str:
    """Return the host's name as the hypervisor reports it or, if none is reported, its name in placement."""
    return (capability(host.state, "hypervisor_hostname") if host.state is not None else None) or host.host


def attribute(host: HostFacts, name: str) -> Attribute | None:
    """Return an attribute of a host by its name or by a path such as `capabilities:cpu_info:arch`; None if
    the host did not report it.
    """
    reads = _OF_PLACEMENT.get(name)
    if reads is not None:
        return reads(host)
    state = host.state
    if state is None:
        return None
    of_report = _OF_ITS_REPORT.get(name)
    if of_report is not None:
        return of_report(state)
    for scope in ("capabilities", "stats"):
        if name.startswith((f"{scope}.", f"{scope}:")):
            return capability(state, name[len(scope) + 1 :])
    if name.startswith(("metrics.", "metrics:")):
        return state.metrics.get(name[len("metrics.") :])
    return capability(state, name)


def capability(state: HostState, path: str) -> str | None:
    """Return a capability by a path such as `cpu_info:arch` or `cpu_info.arch`; None if not reported."""
    known = state.capabilities
    return known.get(path, known.get(path.replace(":", "."), known.get(path.replace(".", ":"))))
