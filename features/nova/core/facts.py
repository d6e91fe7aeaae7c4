"""The facts about a Nova that `berth openstack check` judges, as read from its databases."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from features.nova.core.cloud import MirroredAggregate


@dataclass(frozen=True, kw_only=True)
class DatabaseFacts:
    """The state of one database of Nova: of the API database, or of a cell's database."""

    name: str  # "the API", or the name of the cell
    problem: str = ""  # why it could not be read
    is_template: bool = False  # the URL in cell_mappings has variables of Nova's configuration
    can_write: bool = False  # berth's user may change data
    ahead: float = 0.0  # seconds that its clock is ahead of this machine's
    is_needed: bool = True  # False: cell0, which has no hosts


@dataclass(frozen=True, kw_only=True)
class ServiceFacts:
    """A service of Nova as its database has it."""

    binary: str
    host: str
    version: int
    is_up: bool
    is_disabled: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A compute node, and the cell to which its host is mapped."""

    uuid: str
    host: str
    name: str  # at the hypervisor, and of its provider
    cell: str
    mapped_to: str | None  # None: `nova-manage cell_v2 discover_hosts` must still find the host


@dataclass(frozen=True, kw_only=True)
class InstanceFacts:
    """An instance of Nova, as far as the checks need it."""

    host: str
    node: str
    state: str
    task: str
    flavor: int  # id in the table flavors

    @property
    def has_allocations(self) -> bool:
        """Return whether placement must have allocations of the instance: it has a host and no `task_state`,
        and is neither deleted nor offloaded.
        """
        return bool(self.host) and not self.task and self.state not in ("deleted", "shelved_offloaded")


@dataclass(frozen=True, kw_only=True)
class FlavorFacts:
    """A flavor of Nova, as far as the checks need it."""

    name: str
    extra_specs: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class NovaFacts:
    """The observed state of a Nova. If a cell's database cannot be read, the objects in this database are
    missing.
    """

    databases: list[DatabaseFacts] = field(default_factory=list)
    services: list[ServiceFacts] = field(default_factory=list)
    nodes: list[NodeFacts] = field(default_factory=list)
    instances: dict[str, InstanceFacts] = field(default_factory=dict)  # by UUID
    # by UUID of an instance: those properties of its image with which berth may be unable to decide
    image_properties: dict[str, dict[str, str]] = field(default_factory=dict)
    building: set[str] = field(default_factory=set)  # instances that have no cell yet
    migrations: set[str] = field(default_factory=set)  # UUIDs of migrations in progress
    flavors: dict[int, FlavorFacts] = field(default_factory=dict)  # by id
    aggregates: dict[str, MirroredAggregate] = field(default_factory=dict)  # by UUID

    @property
    def is_complete(self) -> bool:
        """Return whether all databases that the checks need could be read."""
        return bool(self.databases) and not any(
            database.problem for database in self.databases if database.is_needed
        )
