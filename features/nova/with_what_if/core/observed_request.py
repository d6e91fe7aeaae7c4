"""The RequestSpec of a request to Nova's own scheduler, from a notification and from Nova's database."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from msgspec import structs

from features.nova.core.cloud import NovaCloud
from features.nova.core.request_spec import MalformedSpec, RequestedDestination, RequestSpec, decoded
from features.nova.core.translation import CannotJudge

MOST_INSTANCES = 1000  # of a request of berth


def observed(payload: Mapping[str, Any], stored: RequestSpec | None) -> RequestSpec:
    """Return the RequestSpec in the payload of a notification of Nova's scheduler.

    The payload lacks whether the instance boots from a volume. `stored`, the instance's RequestSpec in Nova's
    database, has this field; without `stored`, an image without an id means a volume.
    """
    flavor = payload.get("flavor")
    if not isinstance(flavor, dict):
        raise MalformedSpec("not a RequestSpec: it has no flavor")
    fields = {
        **payload,
        "flavor": {key: value for key, value in flavor.items() if value is not None},
        # A notification contains only the first host and node.
        "force_hosts": _listed(payload.get("force_hosts")),
        "force_nodes": _listed(payload.get("force_nodes")),
    }
    spec = decoded(fields)
    is_bfv = stored.is_bfv if stored is not None else spec.image is None or spec.image.id is None
    return structs.replace(spec, is_bfv=is_bfv)


def refused_without_search(stored: RequestSpec | None) -> RequestSpec:
    """Return the RequestSpec of a boot for which Placement had no candidates: `stored`, from Nova's database.
    Raise CannotJudge if it is None.

    Nova's scheduler publishes nothing about such a request, and the error notification of Nova's conductor
    lacks hints and the server group.
    """
    if stored is None:
        raise CannotJudge("the request: neither Nova's scheduler nor Nova's database has it")
    return stored


def independent(spec: RequestSpec) -> RequestSpec:
    """Return a RequestSpec in which limits on hosts replace its server group; raise CannotJudge if that is
    impossible.

    berth has no record of the group's members, but the notification names their hosts. Soft policies only
    change the order of hosts, and are left out.
    """
    group = spec.instance_group
    if group is None or spec.is_rebuild:
        return spec
    alone = structs.replace(spec, instance_group=None)
    if group.policy not in ("affinity", "anti-affinity"):
        return alone
    if spec.num_instances > 1:
        raise CannotJudge("several instances of a server group at once")
    if group.hosts is None:
        raise CannotJudge("its server group: the hosts of the members were not published")
    if group.policy == "anti-affinity":
        if group.max_per_host > 1 and group.hosts:
            raise CannotJudge("its server group: the number of members on each host was not published")
        return structs.replace(alone, ignore_hosts=[*(spec.ignore_hosts or ()), *group.hosts])
    if len(group.hosts) > 1:
        raise CannotJudge("its server group with affinity: the members are on several hosts")
    if not group.hosts:
        return alone
    wanted = spec.requested_destination or RequestedDestination()
    if wanted.host and wanted.host != group.hosts[0]:
        raise CannotJudge("its server group with affinity: the requested host is not that of the members")
    return structs.replace(alone, requested_destination=structs.replace(wanted, host=group.hosts[0]))


def check_decidable(spec: RequestSpec) -> None:
    """Raise CannotJudge for a rebuild, and for a request with demands that Nova's notifications lack."""
    if spec.is_rebuild:
        raise CannotJudge("a rebuild: it stays on its host, and no host is chosen")
    if spec.flavor.extra_specs.get("accel:device_profile"):
        raise CannotJudge("accelerators of a device profile: their resources were not published")


def operation_of(spec: RequestSpec) -> str:
    """Return what a RequestSpec is for: "rebuild", "move" (if it excludes hosts) or "boot"."""
    if spec.is_rebuild:
        return "rebuild"
    return "move" if spec.ignore_hosts else "boot"


def instances_of(spec: RequestSpec, instance: str) -> tuple[str, ...]:
    """Return an id for each instance of a request: `instance` for the first, ids derived from `instance` for
    the further instances of a multi-create.
    """
    further = min(spec.num_instances, MOST_INSTANCES) - 1
    return (instance, *(str(uuid5(NAMESPACE_OID, f"{instance}/{number}")) for number in range(further)))


def shown_host(cloud: NovaCloud, host: str, node: str) -> str:
    """Return the name to show for a compute node: the name of its host, or of the node if the host has
    several nodes.
    """
    return node if node and len(cloud.of_host(host)) > 1 else host


def shown_roots(cloud: NovaCloud, placed: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """Return a host name for each placed instance. `placed`: root, host name and number of instances of each
    chosen host."""
    names: list[str] = []
    for root, name, instances in placed:
        known = cloud.hosts.get(root)
        names += [shown_host(cloud, known.host, known.node) if known is not None else name] * instances
    return tuple(names)


def _listed(name: object) -> list[str] | None:
    return [name] if isinstance(name, str) and name else None
