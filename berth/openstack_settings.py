"""Defines the groups of settings with which berth uses Ironic."""

from msgspec import field

from bus.feature import SettingsGroup


def _of_ironic(name: str) -> str:
    return f"ironic_{name}"


class IronicConnectionSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The connection to Ironic's notifications and API (docs/ironic.md)."""

    amqp_url: str = ""  # URL of the RabbitMQ to which Ironic publishes; empty: berth reads no notifications
    # Ironic's configuration file, for its options control_exchange and versioned_notifications_topics; empty:
    # their defaults
    conf: str = ""
    # Nova's configuration file, such as /etc/nova/nova.conf, for the options of Nova that berth follows
    # (docs/nova.md); empty: their defaults
    nova_conf: str = field(default="", name="nova_conf")
    # entry of clouds.yaml with the credentials and perhaps the address of Ironic's API; envvars: the OS_*
    # variables; or the URL of an API without authentication; empty: berth does not call Ironic
    api: str = ""


class IronicBuildSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """Settings of berth's agents that deploy instances on Ironic's nodes."""

    # time that a node may stay in one provision state; then the build fails on this node
    build_patience: float = 3600.0


class IronicNodeSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The Ironic nodes that berth uses, and their cells, zones and aggregates."""

    # nodes that berth manages, as FIELD=VALUE; FIELD is conductor_group (- is the group without a name),
    # shard, owner or resource_class; several values of a field are alternatives; empty: all nodes
    selection: tuple[str, ...] = ()
    # field of a node that selects its cell in ironic_cells: conductor_group, owner, ..., properties.NAME
    cell_by: str = ""
    # cell of a node by the value of the node's field ironic_cell_by; *: the cell for all other values
    cells: dict[str, str] = field(default_factory=dict)
    # id of the agent that builds in a cell, by the cell's name, if it is an agent of another system
    agents: dict[str, str] = field(default_factory=dict)
    zone: str = ""  # availability zone of nodes whose field ironic_zone_by is empty
    zone_by: str = ""  # field of a node with its availability zone; the same fields as ironic_cell_by
    # fields of a node, or zone: nodes with equal values belong to one host aggregate
    aggregates_by: tuple[str, ...] = ()
    # field of a node with its label, by level, as in rack=properties.rack (docs/topology.md)
    labels_by: dict[str, str] = field(default_factory=dict)


class IronicSettings(SettingsGroup, frozen=True, kw_only=True):
    """The groups of settings with which berth uses Ironic."""

    connection: IronicConnectionSettings = IronicConnectionSettings()
    builds: IronicBuildSettings = IronicBuildSettings()
    nodes: IronicNodeSettings = IronicNodeSettings()

    @property
    def is_read(self) -> bool:
        return bool(self.connection.api)

    @property
    def is_heard(self) -> bool:
        return bool(self.connection.amqp_url)
