"""Attributes of a host by Nova's names, for extra specs and queries."""

from collections.abc import Callable, Mapping

from bus.reports import HostState
from scheduler_worker.core.facts import HostFacts

Attribute = str | float | bool

_OF_PLACEMENT: Mapping[str, Callable[[HostFacts], Attribute]] = {
    "uuid": lambda host: host.root,
    "host": lambda host: host.host,
    "nodename": lambda host: host.host,
    "hypervisor_hostname": lambda host: host.host,
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


def attribute(host: HostFacts, name: str) -> Attribute | None:
    """Return an attribute by a name or a path such as `capabilities:cpu_info:arch` or `metrics.temperature`,
    or None.
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
    """Return a property that the host reported under this path, in either spelling."""
    said = state.capabilities
    return said.get(path, said.get(path.replace(":", "."), said.get(path.replace(".", ":"))))
