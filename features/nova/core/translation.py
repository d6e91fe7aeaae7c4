"""Translates a RequestSpec of Nova into a query to berth's scheduler.

Nova's pre-filters are part of the translation. Pre-filters by aggregate metadata (tenants, isolated
aggregates) are not: the scheduler applies them itself, from the mirrored aggregates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from bus.messages import BuildRequested
from bus.requests import Hints, ResourceGroup
from bus.vocabulary import UNSAID_ID, Id
from features.nova.core.cloud import DISCOVER, NovaCloud, NovaHost
from features.nova.core.guest import flavor_of, image_of, root_traits_of
from features.nova.core.request_spec import RequestedDestination, RequestedGroup, RequestSpec
from features.nova.core.unjudged_properties import NO_PMEM, unjudged_by_flavor
from features.nova.messages import HostsAsked

OWNER_NOVA = "OWNER_NOVA"
OWNER_SINCE = 73  # service version from which on nova-compute sets the trait OWNER_NOVA
GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]
_POLICIES: tuple[GroupPolicy, ...] = get_args(GroupPolicy)


NUMA_REQUEST = "its NUMA topology, pinned CPUs or page size: placement has no NUMA cells of Nova's hosts"


class CannotJudge(Exception):
    """Error: berth cannot decide a request of Nova from placement's data. A configured nova-scheduler decides
    it; without one, the request is refused."""


class NoSuchDestination(ValueError):
    """Error: the request of Nova names a host, node, cell or zone that does not exist."""


@dataclass(frozen=True)
class BridgeOptions:
    """The settings that change how the bridge answers Nova's scheduler RPC."""

    alternates: int = 2  # Nova's [scheduler]max_attempts minus 1
    default_zone: str = "nova"
    routed_networks: bool = False  # Nova's query_placement_for_routed_network_aggregates is on


@dataclass(frozen=True)
class GroupOfRequest:
    """A server group of Nova that the instances of a request join."""

    id: Id
    policy: GroupPolicy
    max_per_host: int
    project: str
    members: tuple[Id, ...] = ()


@dataclass(frozen=True)
class Translated:
    """A query for hosts to berth's scheduler, without the server group that the instances join."""

    question: HostsAsked
    group: GroupOfRequest | None = None


def translated(
    spec: RequestSpec,
    instances: Sequence[str],
    cloud: NovaCloud,
    options: BridgeOptions,
    *,
    request: str,
    wants_alternates: bool = False,
) -> Translated:
    """Translate a RequestSpec for the given instances into a query to berth's scheduler with the request id
    `request`; raise CannotJudge or NoSuchDestination.
    """
    if why := unjudged(spec, options):
        raise CannotJudge(why)
    place = _destination(spec, cloud)
    required, forbidden = _root_traits(spec, cloud)
    build = BuildRequested(
        request=request,
        instances=tuple(instances),
        flavor=flavor_of(spec),
        image=image_of(spec),
        project=spec.project_id or UNSAID_ID,
        user=spec.user_id or UNSAID_ID,
        zone=spec.availability_zone if spec.availability_zone in cloud.zones else "",
        cell=place.cell,
        aggregates=place.aggregates,
        not_aggregates=place.not_aggregates,
        alternates=options.alternates if wants_alternates and not spec.is_rebuild else 0,
        hints=_hints(spec, instances),
        forced_host=place.forced,
        wanted_host=place.wanted,
        ignore_hosts=_ignored(spec, cloud),
        groups=tuple(_groups(spec, cloud)),
        same_subtree=tuple(tuple(suffixes) for suffixes in spec.request_level_params.same_subtree),
        root_required=required,
        root_forbidden=forbidden,
        not_cells=cloud.other_cells,
    )
    asked = HostsAsked(request=build, do="check" if spec.is_rebuild else "claim")
    return Translated(asked, _group(spec))


def unjudged(spec: RequestSpec, options: BridgeOptions) -> str:
    """Return why berth cannot decide a request of Nova from placement's data, or an empty text
    (features/nova/README.md)."""
    if spec.numa_topology is not None and not spec.is_rebuild:
        why = unjudged_by_flavor(spec.flavor.extra_specs, has_pci=True)
        return NO_PMEM if why == NO_PMEM else NUMA_REQUEST
    in_placement = {_requester(group) for group in spec.requested_resources or ()}
    for request in spec.pci_requests.requests if spec.pci_requests is not None else ():
        if request.request_id not in in_placement:
            device = f"alias {request.alias_name!r}" if request.alias_name else f"port {request.requester_id}"
            return f"the PCI device of {device}: Nova does not track it in placement"
    if options.routed_networks and (spec.requested_networks or {}).get("objects"):
        return "routed networks: their segments are known to Neutron only"
    return ""


@dataclass(frozen=True)
class _Place:
    cell: str = ""
    forced: str = ""
    wanted: str = ""
    aggregates: tuple[tuple[str, ...], ...] = ()
    not_aggregates: tuple[str, ...] = ()


def _destination(spec: RequestSpec, cloud: NovaCloud) -> _Place:
    wanted = spec.requested_destination or RequestedDestination()
    cell = ""
    if wanted.cell is not None and not wanted.allow_cross_cell_move:
        known = cloud.cells.get(wanted.cell.uuid)
        if known is None:
            raise NoSuchDestination(f"there is no cell {wanted.cell.name or wanted.cell.uuid}")
        cell = known.berth_name
    forced_host, forced_node = (spec.force_hosts or [""])[0], (spec.force_nodes or [""])[0]
    return _Place(
        cell=cell,
        forced=_named(forced_host, forced_node, cloud),
        wanted=_named(wanted.host or "", wanted.node or "", cloud),
        aggregates=tuple(tuple(any_of.split(",")) for any_of in wanted.aggregates or ()),
        not_aggregates=tuple(wanted.forbidden_aggregates or ()),
    )


def _named(host: str, node: str, cloud: NovaCloud) -> str:
    """Return the root provider's id of the named host or node, or "" if neither is named. If the host has
    several matching nodes, return the host's name, which means all of its nodes. Raise NoSuchDestination if
    nothing matches.
    """
    if not host and not node:
        return ""
    found: Iterable[NovaHost] = cloud.of_node(node) if node else cloud.of_host(host)
    nodes = [each for each in found if not host or each.host.lower() == host.lower()]
    if not nodes and cloud.is_unmapped(host):
        raise NoSuchDestination(f"{host}: {DISCOVER}")
    if not nodes:
        raise NoSuchDestination(f"no such host: host {host or 'any'}, node {node or 'any'}")
    return nodes[0].root if len(nodes) == 1 else nodes[0].host


def _ignored(spec: RequestSpec, cloud: NovaCloud) -> tuple[str, ...]:
    named = {host.lower(): host for host in spec.ignore_hosts or ()}
    return tuple(each.root for name in named for each in cloud.of_host(name))


def _group(spec: RequestSpec) -> GroupOfRequest | None:
    given = spec.instance_group
    if given is None or spec.is_rebuild:
        return None
    kind = next((policy for policy in _POLICIES if policy == given.policy), None)
    if kind is None:
        raise CannotJudge(f"the policy {given.policy!r} of its server group")
    return GroupOfRequest(
        id=given.uuid,
        policy=kind,
        max_per_host=given.max_per_host,
        project=spec.project_id or given.project_id or UNSAID_ID,
        members=tuple(given.members or ()),
    )


def _hints(spec: RequestSpec, instances: Sequence[str]) -> Hints:
    """Return the hints of a request; a moving instance may be named by its own hint."""
    if spec.is_rebuild:  # the instance stays where it is
        return Hints()
    return Hints(
        same_host=tuple(other for other in spec.hint("same_host") if other not in instances),
        different_host=tuple(other for other in spec.hint("different_host") if other not in instances),
        build_near_host_ip=_first(spec, "build_near_host_ip"),
        cidr=_first(spec, "cidr") or "/24",
        query=_first(spec, "query"),
    )


def _first(spec: RequestSpec, hint: str) -> str:
    values = spec.hint(hint)
    return values[0] if values else ""


def _requester(group: RequestedGroup) -> str:
    """Return the id of the PCI request, port or accelerator to which a group belongs, without its number."""
    return (group.requester_id or "").rsplit("-", 1)[0]


def _groups(spec: RequestSpec, cloud: NovaCloud) -> Iterable[ResourceGroup]:
    """Yield a request group for each port, accelerator or PCI device of a RequestSpec, with its id as the
    suffix. Devices of an alias must belong to Nova, if all hosts report which do.
    """
    requests = spec.pci_requests.requests if spec.pci_requests is not None else ()
    of_aliases = {request.request_id for request in requests if request.alias_name is not None}
    for number, group in enumerate(spec.requested_resources or (), 1):
        resources = {name: amount for name, amount in group.resources.items() if amount}
        owners = {OWNER_NOVA} if _has_owners(cloud) and _requester(group) in of_aliases else set()
        yield ResourceGroup(
            suffix=group.requester_id or f"_group{number}",
            resources=resources,
            required=tuple(sorted({*group.required_traits, *owners})),
            forbidden=tuple(sorted(group.forbidden_traits)),
            member_of=tuple(tuple(any_of) for any_of in group.aggregates),
            not_member_of=tuple(sorted(group.forbidden_aggregates)),
            in_tree=group.in_tree,
        )


def _has_owners(cloud: NovaCloud) -> bool:
    return cloud.least_version >= OWNER_SINCE


def _root_traits(spec: RequestSpec, cloud: NovaCloud) -> tuple[tuple[str, ...], tuple[str, ...]]:
    required = {*spec.request_level_params.root_required, *root_traits_of(spec)}
    if _has_owners(cloud):
        required.add(OWNER_NOVA)
    return tuple(sorted(required)), tuple(sorted(spec.request_level_params.root_forbidden))
