"""An operator's options for reading requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NumaPolicy = Literal["legacy", "preferred", "required", "socket"]
NUMA_POLICIES: Mapping[str, NumaPolicy] = {
    "legacy": "legacy",
    "preferred": "preferred",
    "required": "required",
    "socket": "socket",
}


@dataclass(frozen=True)
class PciAlias:
    """A name that flavors ask devices by."""

    resource_class: str
    traits: tuple[str, ...] = ()
    numa_policy: NumaPolicy = "legacy"  # required: below the NUMA cell that the guest gets


@dataclass(frozen=True, eq=False)  # known by what it is, so that what was read by it can be kept
class RequestOptions:
    """The defaults are Nova's."""

    pci_aliases: Mapping[str, PciAlias] = field(default_factory=dict)
    large_pages: tuple[str, ...] = ("1GB", "2MB")  # what hw:mem_page_size=large tries, in this order
    # hw_disk_bus and similar properties become required traits of the host
    image_metadata_traits: bool = False
    image_type_traits: bool = False  # so is the image's disk_format
    max_wait: float = 7 * 86400.0  # seconds a request may wait for room
    unscoped: bool = False  # some rule reads extra specs without a scope: they are not called unknown
    tenant_aggregates: bool = False  # a project with aggregates is restricted to them
    tenant_aggregates_required: bool = False  # and one without has no hosts
    isolate_aggregates: bool = False  # aggregates with a required trait accept only requests that require it
