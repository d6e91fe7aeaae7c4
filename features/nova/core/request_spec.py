"""Decodes Nova's RequestSpec, with the fields that a scheduler reads, from an RPC or a notification."""

from typing import Any

import msgspec
from msgspec import field

from features.nova.core.objects import plain


class NovaObject(msgspec.Struct, frozen=True, kw_only=True):
    """A versioned object of Nova; unknown fields of later versions are ignored."""


class NovaFlavor(NovaObject, frozen=True, kw_only=True):
    """The flavor in a RequestSpec."""

    name: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap: int = 0  # MB
    extra_specs: dict[str, str] = field(default_factory=dict)


class NovaImage(NovaObject, frozen=True, kw_only=True):
    """The image in a RequestSpec."""

    id: str | None = None
    name: str | None = None
    disk_format: str | None = None
    properties: dict[str, Any] | None = None


class NovaCellMapping(NovaObject, frozen=True, kw_only=True):
    """A cell in a RequestSpec."""

    uuid: str
    name: str | None = None


class RequestedDestination(NovaObject, frozen=True, kw_only=True):
    """The host, node, cell or aggregates to which a move or a boot is restricted."""

    host: str | None = None
    node: str | None = None
    cell: NovaCellMapping | None = None
    aggregates: list[str] | None = None  # element: uuids separated by commas, of which one is needed
    forbidden_aggregates: list[str] | None = None
    allow_cross_cell_move: bool = False


class NovaGroup(NovaObject, frozen=True, kw_only=True):
    """The server group in a RequestSpec."""

    uuid: str
    name: str | None = None
    project_id: str | None = None
    policy: str | None = None
    rules: dict[str, Any] | None = None  # in notifications
    rpc_rules: dict[str, Any] | None = field(default=None, name="_rules")  # the same in RPC
    members: list[str] | None = None
    hosts: list[str] | None = None

    @property
    def max_per_host(self) -> int:
        """How many members the group may have on one host."""
        return int((self.rules or self.rpc_rules or {}).get("max_server_per_host", 1))


class RequestedGroup(NovaObject, frozen=True, kw_only=True):
    """The resources and traits that a port or an accelerator requires."""

    use_same_provider: bool = True
    resources: dict[str, int] = field(default_factory=dict)
    required_traits: list[str] = field(default_factory=list)
    forbidden_traits: list[str] = field(default_factory=list)
    aggregates: list[list[str]] = field(default_factory=list)
    forbidden_aggregates: list[str] = field(default_factory=list)
    requester_id: str | None = None
    in_tree: str | None = None


class RequestLevelParams(NovaObject, frozen=True, kw_only=True):
    """Requirements of a RequestSpec for the whole provider tree."""

    root_required: list[str] = field(default_factory=list)
    root_forbidden: list[str] = field(default_factory=list)
    same_subtree: list[list[str]] = field(default_factory=list)


class PciRequest(NovaObject, frozen=True, kw_only=True):
    """One request for PCI devices."""

    request_id: str | None = None
    alias_name: str | None = None
    requester_id: str | None = None  # of a port


class PciRequests(NovaObject, frozen=True, kw_only=True):
    """The requests for PCI devices of an instance."""

    requests: list[PciRequest] = field(default_factory=list)


class RequestSpec(NovaObject, frozen=True, kw_only=True):
    """A request of Nova for hosts, with the fields that a scheduler reads."""

    flavor: NovaFlavor
    image: NovaImage | None = None
    instance_uuid: str | None = None
    num_instances: int = 1
    project_id: str | None = None
    user_id: str | None = None
    availability_zone: str | None = None
    ignore_hosts: list[str] | None = None
    force_hosts: list[str] | None = None
    force_nodes: list[str] | None = None
    requested_destination: RequestedDestination | None = None
    instance_group: NovaGroup | None = None
    scheduler_hints: dict[str, list[str]] | None = None
    numa_topology: dict[str, Any] | None = None
    pci_requests: PciRequests | None = None
    requested_resources: list[RequestedGroup] | None = None
    request_level_params: RequestLevelParams = RequestLevelParams()
    requested_networks: dict[str, Any] | None = None
    is_bfv: bool = False

    def hint(self, name: str) -> tuple[str, ...]:
        """Return the values of the scheduler hint `name`."""
        return tuple((self.scheduler_hints or {}).get(name) or ())

    @property
    def is_rebuild(self) -> bool:
        """Return whether Nova only checks the present host for a rebuild."""
        return self.hint("_nova_check_type") == ("rebuild",)


class MalformedSpec(ValueError):
    """Error: a request of Nova does not have the form of a RequestSpec; the text names the field."""


def decoded(primitive: Any) -> RequestSpec:
    """Decode a RequestSpec from the argument `spec_obj` of an RPC call, or from a notification's payload;
    raise MalformedSpec if it is invalid.
    """
    try:
        return msgspec.convert(plain(primitive), RequestSpec, strict=False)
    except msgspec.ValidationError as problem:
        raise MalformedSpec(f"not a RequestSpec: {problem}") from None
