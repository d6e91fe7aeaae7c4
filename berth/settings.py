"""Defines all settings, as values in groups.

A setting has one name for users: `BERTH_NAME` in the environment, `NAME` in a TOML file and after --set. In
the code it is a field of its group; a group's `rename` maps the user's names to the fields.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import field

from bus.broker_urls import user_of


class BadSetting(ValueError):
    """Error: a setting cannot be used; the text has its name, value and source."""


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of groups of settings. All times are in seconds."""


G = TypeVar("G", bound=SettingsGroup)


class Cell(msgspec.Struct, frozen=True):
    """A cell in the settings; its broker and database are empty if it uses the common ones."""

    name: str
    broker: str = ""  # the URL of its workers' RabbitMQ: a separate user, or another node of the cluster
    database: str = ""  # the URL of its conductor's database
    ferry: str = ""  # the URL by which its ferry connects to the cell's separate RabbitMQ; empty: it has none

    @property
    def user(self) -> str:
        """Return the RabbitMQ user of the cell's workers."""
        return user_of(self.broker) or ""


class BusSettings(SettingsGroup, frozen=True, kw_only=True):
    """The connection to the message broker."""

    # URL of RabbitMQ; of a cluster with all nodes, as in amqp://user:password@host1:5672,host2:5672/vhost;
    # empty: an in-process bus, and all workers in one process
    amqp_url: str = ""
    # seconds between heartbeats with RabbitMQ; a node that is silent for twice as long counts as lost
    amqp_heartbeat: int = 5
    exchange: str = "berth"  # exchange on RabbitMQ to which berth publishes all messages
    queue_type: str = "quorum"  # type of durable queues on RabbitMQ: quorum or classic


class DatabaseSettings(SettingsGroup, frozen=True, kw_only=True):
    """The database in which workers store their records."""

    # URL of PostgreSQL, with one host or a list (h1:5432,h2:5432); empty: SQLite files in state_dir
    url: str = field(default="", name="database_url")
    state_dir: str = ".berth"  # directory of SQLite files, of the in-process bus and of simulated agents


class CellSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of the cells: their names, brokers and databases (docs/cells.md)."""

    # names of all cells; in a TOML file, `[cells.NAME]` is the table of one cell
    names: tuple[str, ...] = field(default=("c1", "c2", "c3", "c4"), name="cells")
    # URL of RabbitMQ for a cell's workers, by the cell's name; in a TOML file `broker`
    amqp_urls: dict[str, str] = field(default_factory=dict, name="cell_amqp_urls")
    # URL of a conductor's database, by its cell's name; in a TOML file `database`
    database_urls: dict[str, str] = field(default_factory=dict, name="cell_database_urls")
    # URL of a cell's separate RabbitMQ, by the cell's name; in a TOML file `ferry`
    ferry_urls: dict[str, str] = field(default_factory=dict, name="cell_ferry_urls")


class CellAccountLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a cell's RabbitMQ user and PostgreSQL login."""

    connections: int = 100  # of the RabbitMQ user
    channels: int = 2000  # of that user, over all its connections
    queue_bytes: int = 64 * 1024 * 1024  # of messages in each queue that the cell declares or alone fills
    database_connections: int = 30  # of the PostgreSQL login: five for each conductor process
    statement_seconds: float = 300.0  # until PostgreSQL ends a statement of that login
    transaction_seconds: float = 60.0  # until PostgreSQL ends a session that is idle in a transaction
    lock_seconds: float = 60.0  # that a statement of that login waits for a lock
    temp_bytes: int = 1024 * 1024 * 1024  # of temporary files of a session; only a superuser can set it


class SchedulerSettings(SettingsGroup, frozen=True, kw_only=True):
    """The choice of hosts by schedulers: filters, weighers and their options (docs/scheduler.md)."""

    # names of the filters in their order; a custom filter is module:function; empty: the default filters
    filters: tuple[str, ...] = field(default=(), name="scheduler_filters")
    # multiplier of each weigher by its name; empty: the default weighers
    weighers: dict[str, float] = field(default_factory=dict, name="scheduler_weighers")
    # options of filters and weighers, by the name of the filter or weigher
    rules: dict[str, dict[str, Any]] = field(default_factory=dict, name="scheduler_rules")
    # number of best hosts among which the host of a request is drawn at random; 1: always the best host
    subset: int = field(default=1, name="host_subset_size")
    # difference of scores up to which two hosts count as equally good
    near: float = field(default=0.0, name="scheduler_near")


class RequestSettings(SettingsGroup, frozen=True, kw_only=True):
    """The interpretation of build requests: PCI aliases, traits, tenants (docs/requests.md)."""

    # PCI aliases of flavors by name: resource class, traits, and numa=legacy, preferred, required or socket
    pci_aliases: dict[str, str] = {}
    # page sizes that hw:mem_page_size=large may use, the preferred size first
    large_pages: tuple[str, ...] = ("1GB", "2MB")
    # whether image properties such as hw_disk_bus become required traits of the host
    image_metadata_traits: bool = False
    image_type_traits: bool = False  # whether an image's disk_format becomes a required trait of the host
    max_wait: float = 7 * 86400.0  # longest time that a request may wait for capacity
    # whether a project with host aggregates of its own may use only their hosts: off, optional or required
    # optional: a project without such an aggregate may use all other hosts; required: it may use none
    tenant_aggregates: str = "off"
    # whether aggregates with the property trait:X=required accept only requests that require trait X
    isolate_aggregates: bool = False


class PlacementHttpSettings(
    SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"placement_{name}"
):
    """The Placement API over HTTP (docs/http.md)."""

    http: str = ""  # address of the API as HOST:PORT; empty: the API is not served
    # authentication: noauth2 trusts every caller (development only), tokens reads placement_tokens, keystone
    # checks tokens at the Keystone of placement_cloud (docs/keystone.md)
    auth: str = "noauth2"
    # entry of clouds.yaml with the user that may check tokens at Keystone; envvars: the OS_* variables
    cloud: str = ""
    tokens: str = ""  # file with the tokens of users and their roles
    policy: str = ""  # policy file in oslo.policy's format; empty: the default rules
    # whether a role needs its scope, as in Placement's option of this name: `admin` alone is not enough
    enforce_new_defaults: bool = False
    cors_origins: tuple[str, ...] = ()  # origins of web pages that may call the API (CORS)
    noauth_anywhere: bool = False  # whether noauth2 is allowed on addresses that other machines can reach
    http_connections: int = 1000  # most open connections; at most half of the process's file limit


class ControlRoomSettings(
    SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"control_room_{name}"
):
    """The control room, berth's web UI (docs/control_room.md). `placement_auth` sets how users sign in."""

    # address of the web UI as HOST:PORT; auto: 127.0.0.1:8780 or a free port under `berth up`; off: none
    http: str = "auto"
    # host names under which browsers may open the web UI, in addition to IP addresses and localhost
    names: tuple[str, ...] = ()
    # federation protocol at Keystone by which users may sign in, such as openid; empty: only with a password
    sso: str = ""
    # URL of Keystone for browsers, for single sign-on; empty: the auth_url of placement_cloud
    sso_url: str = ""

    @property
    def listens(self) -> bool:
        return self.http not in ("auto", "off")


def _of_ironic(name: str) -> str:
    return f"ironic_{name}"


class IronicNewsSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The connection to Ironic's notifications (docs/ironic.md)."""

    amqp_url: str = ""  # URL of the RabbitMQ to which Ironic publishes; empty: berth reads no notifications
    exchange: str = "ironic"  # exchange of Ironic's notifications
    # topics of Ironic's notifications, as in Ironic's option versioned_notifications_topics
    topics: tuple[str, ...] = ("ironic_versioned_notifications",)


class IronicApiSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The connection to Ironic's API."""

    # URL of Ironic's API; empty: from the catalog of ironic_cloud; both empty: berth does not call Ironic
    url: str = field(default="", name="ironic_api_url")
    # entry of clouds.yaml with the credentials; envvars: the OS_* variables; empty: no authentication
    cloud: str = ""


class IronicSweepSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The periodic comparison of Ironic's nodes with placement."""

    sweep_seconds: float = 60.0  # time between two comparisons of recently changed nodes
    # largest share of all nodes that one comparison may remove; if more are missing, berth removes none
    share_gone: float = 0.1
    # whether an available node with an instance stays schedulable (Nova: skip_reserve_in_use_ironic_nodes)
    skip_reserve_in_use: bool = False


class IronicBuildSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """Settings of berth's agents that deploy instances on Ironic's nodes."""

    # time that a node may stay in one provision state; then the build fails on this node
    build_patience: float = 3600.0
    # time that a node may be in maintenance before its deployment starts; then the build tries another node
    maintenance_patience: float = 300.0
    agents_per_cell: int = 1  # bare-metal agents that `berth up` runs in each cell; they share the nodes


class IronicNodeSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The Ironic nodes that berth uses, and their cells, zones and aggregates."""

    # nodes that berth manages, as FIELD=VALUE; FIELD is conductor_group (- is the group without a name),
    # shard, owner or resource_class; several values of a field are alternatives; empty: all nodes
    selection: tuple[str, ...] = ()
    # field of a node that selects its cell in ironic_cells: conductor_group, owner, ..., properties.NAME
    cell_by: str = ""
    # cell of a node by the value of the node's field ironic_cell_by; *: the cell for all other values
    cells: dict[str, str] = {}
    # id of the agent that builds in a cell, by the cell's name, if it is an agent of another system
    agents: dict[str, str] = {}
    zone: str = ""  # availability zone of nodes whose field ironic_zone_by is empty
    zone_by: str = ""  # field of a node with its availability zone; the same fields as ironic_cell_by
    # fields of a node, or zone: nodes with equal values belong to one host aggregate
    aggregates_by: tuple[str, ...] = ()


class IronicSettings(SettingsGroup, frozen=True, kw_only=True):
    """The groups of settings with which berth uses Ironic."""

    news: IronicNewsSettings = IronicNewsSettings()
    api: IronicApiSettings = IronicApiSettings()
    sweeps: IronicSweepSettings = IronicSweepSettings()
    builds: IronicBuildSettings = IronicBuildSettings()
    nodes: IronicNodeSettings = IronicNodeSettings()

    @property
    def is_read(self) -> bool:
        return bool(self.api.url or self.api.cloud)

    @property
    def is_heard(self) -> bool:
        return bool(self.news.amqp_url)


class NovaSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"nova_{name}"):
    """Settings for the Nova whose scheduler berth replaces (docs/nova.md)."""

    # URL of the RabbitMQ and virtual host on which Nova calls its scheduler; empty: berth serves no Nova
    amqp_url: str = ""
    exchange: str = "nova"  # Nova's option control_exchange
    durable_queues: bool = False  # Nova's option amqp_durable_queues
    quorum_queues: bool = False  # Nova's option rabbit_quorum_queue
    database_url: str = ""  # URL of Nova's API database, for a user who may read it
    # URL of the database of a cell of Nova, by the cell's name; without one Nova's own URL is used
    cell_database_urls: dict[str, str] = {}
    service_down_time: float = 60.0  # Nova's option: time without a report after which a compute is down
    max_attempts: int = 3  # Nova's option: hosts for a boot, the alternates included
    default_zone: str = "nova"  # Nova's option default_availability_zone
    # time that a call may wait for capacity; Nova's option long_rpc_timeout limits it
    wait: float = 0.0
    # whether Nova's option query_placement_for_routed_network_aggregates is on
    routed_networks: bool = False
    # notifications that the bridge publishes as nova-scheduler would: off, versioned, unversioned or both
    # (Nova's option notification_format)
    notification_format: str = "off"
    # URL of the RabbitMQ and virtual host of Nova's notifications; empty: no shadow mode, and the bridge
    # publishes to nova_amqp_url
    notification_amqp_url: str = ""
    # Nova's option versioned_notifications_topics: topics that shadow mode reads and the bridge publishes to
    notification_topics: tuple[str, ...] = ("versioned_notifications",)
    shadow_days: float = 14.0  # days for which compared requests are stored
    # URL of the virtual host of a nova-scheduler that decides what berth cannot; empty: such requests fail
    fallback_amqp_url: str = ""


class ConductorSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of cell conductors: the number of attempts for a build, and time limits."""

    max_attempts: int = 3  # number of hosts that are tried for one build
    build_timeout: float = 300.0  # time without a report of the agent; then the build tries the next host
    # time without an answer to a deletion; then the build is deleted, but its resources on the host stay held
    delete_timeout: float = 600.0
    # time that resources stay held for an agent that does not answer; then they are released
    cleanup_timeout: float = 86400.0
    # limits of the accounts that `berth cell add` makes (docs/cells.md): connections, queue_bytes and so on
    cell_limits: dict[str, float] = field(default_factory=dict)


class RetentionSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"keep_{name}"):
    """The time for which workers store records of what has ended (docs/running.md, "Growth")."""

    builds: float = 7 * 86400.0  # time for which a cell's database stores a build after its end
    moves: float = 7 * 86400.0  # time for which databases store a move after its end
    decisions: float = 7 * 86400.0  # time for which schedulers store decisions, for `berth why`
    # time for which placement refuses claims with the id of an ended build or move; a request with this id
    # that arrives later is a new request
    ids: float = 7 * 86400.0
    changes: int = 20_000  # number of placement's latest commits in its change log


class SimulatorSettings(SettingsGroup, frozen=True, kw_only=True):
    """The simulated agents; in a TOML file these settings are in the table [simulator]."""

    agents_per_cell: int = 1  # number of simulated agents in each cell; they share the cell's simulated hosts
    hosts: int = 200  # number of simulated hosts in all cells together
    baremetal: int = 0  # number of simulated bare-metal nodes, in addition to the hosts
    zones: tuple[str, ...] = ()  # availability zones, assigned to the simulated hosts in rotation
    # CPU architectures (x86_64, aarch64 and so on), assigned to the simulated hosts in rotation
    architectures: tuple[str, ...] = ("x86_64",)
    # machine types, assigned to hosts in rotation: flat, numa, sriov, vgpu, devices, of a file, module:Class
    drivers: tuple[str, ...] = field(default=("flat",), name="compute_drivers")
    machines: str = field(default="", name="compute_machines")  # TOML file with further machine types
    # file provider.yaml in Nova's format, or a directory of such files: additional inventories of hosts
    provider_config: str = field(default="", name="compute_provider_config")
    heartbeat: float = 10.0  # time between two heartbeats of a host
    # duration of a build as a distribution: constant:1, uniform:1,3, exponential:0.1, lognormal:1,0.5
    build_time: str = "exponential:0.1"
    fail: float = 0.0  # share of builds that fail on their first host and are tried on the next
    abort: float = 0.0  # share of builds that fail permanently
    hang: float = 0.0  # share of builds that never report an end
    # share of the phases of moves that fail: checks, copies, starts, rebuilds
    move_fail: float = 0.0
    move_hang: float = 0.0  # share of the phases of moves that never report an end
    move_time: str = ""  # duration of each phase of a move, like build_time; empty: build_time
    crash_after: int = 0  # number of builds after which an agent loses power and starts again; 0: never
    seed: int = 1  # seed of all simulated durations and faults
    # whether guests without a record in placement are stopped instead of destroyed after a restore
    spare_unknown_guests: bool = False


class ProcessSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of every process: logs, metrics and limits."""

    log_level: str = "warning"  # least severe level that is logged: debug, info, warning or error
    log_format: str = "text"  # format of log lines: text, or json with an object a line (docs/logs.md)
    # port of the first process's Prometheus metrics; other processes of `berth up` use the next; 0: none
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"  # address that serves the metrics; 0.0.0.0: all interfaces
    # certificate file for TLS of the Placement API and the control room; a changed file is read again
    http_certificate: str = ""
    http_key: str = ""  # file with the key of that certificate
    drain: float = 1.0  # time that a stopping process has for the messages it handles; it returns the others
    # seconds for which the event loop of a worker process may be blocked, until the process logs the stack
    # and ends with exit code 70; 0: no limit
    blocked_limit: float = 60.0
    # seconds for which a queue's reader may take no message although some wait, until it is logged; 0: never
    stuck_after: float = 120.0
    # number of cells with a common process for their conductors under `berth up`, and one for their agents
    cells_a_process: int = 1


class Settings(SettingsGroup, frozen=True, kw_only=True):
    """All settings. Every setting has a default, so berth runs without any configuration."""

    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()
    cells: CellSettings = CellSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    requests: RequestSettings = RequestSettings()
    placement: PlacementHttpSettings = PlacementHttpSettings()
    control_room: ControlRoomSettings = ControlRoomSettings()
    ironic: IronicSettings = IronicSettings()
    nova: NovaSettings = NovaSettings()
    conductor: ConductorSettings = ConductorSettings()
    keep: RetentionSettings = RetentionSettings()
    process: ProcessSettings = ProcessSettings()
    compute: SimulatorSettings = SimulatorSettings()

    @property
    def embedded(self) -> bool:
        return not self.bus.amqp_url

    @property
    def cell_limits(self) -> CellAccountLimits:
        return msgspec.convert(self.conductor.cell_limits, CellAccountLimits, strict=False)

    @property
    def cell_names(self) -> tuple[str, ...]:
        return self.cells.names

    @property
    def every_cell(self) -> tuple[Cell, ...]:
        """Return the cells, with the broker and the database that the settings give each of them."""
        urls = (self.cells.amqp_urls, self.cells.database_urls, self.cells.ferry_urls)
        return tuple(Cell(name, *(by_cell.get(name, "") for by_cell in urls)) for name in self.cells.names)

    @property
    def metal_cells(self) -> tuple[str, ...]:
        """Return the names of the cells that may have Ironic's nodes, in the order of the setting `cells`."""
        cells = {*self.ironic.nodes.cells.values(), self.metal_cell}
        return tuple(name for name in self.cell_names if name in cells)

    @property
    def metal_cell(self) -> str:
        """Return the name of the cell of Ironic nodes that the setting `ironic_cells` does not assign: its
        entry "*", or "" without that entry. If the setting is empty, all nodes are in the first cell."""
        nodes = self.ironic.nodes
        return nodes.cells.get("*", "") if nodes.cells else self.cell_names[0]

    def cell(self, name: str) -> Cell:
        """Return a cell of this name, with the common broker and database unless it has separate URLs."""
        known = next((cell for cell in self.every_cell if cell.name == name), Cell(name))
        everybodys = self.database.url or f"sqlite+aiosqlite:///{Path(self.database.state_dir).resolve()}/"
        broker = known.broker or known.ferry or self.bus.amqp_url
        return Cell(name, broker, known.database or everybodys, known.ferry)

    def database_for(self, store: str) -> str:
        """Return the URL of a worker's database. By default each worker has a separate schema or file."""
        return self.cell(store.removeprefix("cell_") if store.startswith("cell_") else "").database

    def having(self, **named: Any) -> "Settings":
        """Return a copy of the settings with some values changed, given by their names for users."""
        if strange := named.keys() - KINDS.keys():
            raise TypeError(f"no settings: {', '.join(sorted(strange))}")
        return _made(Settings, {**by_name(self), **named})


def _declared(
    kind: Any = Settings, group: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield, for every setting, its name for users, the path to its field, and its type."""
    for member in msgspec.structs.fields(kind):
        if isinstance(member.type, type) and issubclass(member.type, SettingsGroup):
            yield from _declared(member.type, (*group, member.name))
        else:
            yield member.encode_name, (*group, member.name), member.type


_DECLARED = tuple(_declared())
KINDS: Mapping[str, Any] = {name: kind for name, _, kind in _DECLARED}
GROUP_OF: Mapping[str, str] = {name: " ".join(path[:-1]) for name, path, _ in _DECLARED}


SIMULATOR = frozenset(name for name, group in GROUP_OF.items() if group == "compute")


def by_name(settings: Settings) -> dict[str, Any]:
    """Return a mapping of each setting's name, as users write it, to its value."""
    return {name: attrgetter(".".join(path))(settings) for name, path, _ in _DECLARED}


def _made(kind: type[G], values: Mapping[str, Any]) -> G:
    parts: dict[str, Any] = {}
    for member in msgspec.structs.fields(kind):
        if isinstance(member.type, type) and issubclass(member.type, SettingsGroup):
            parts[member.name] = _made(member.type, values)
        else:
            parts[member.name] = values[member.encode_name]
    return kind(**parts)


def names_a_file(database_url: str) -> bool:
    """Return whether the URL names an SQLite file, which can hold the database of one worker only."""
    return database_url.startswith("sqlite") and not database_url.endswith("/")


def described(value: Any) -> str:
    """Describe a refused value for an error message; a text may be secret, so only its length is shown."""
    match value:
        case bool() | int() | float():
            return repr(value)
        case str():
            return f"a text of {len(value)} characters"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"a table of {len(value)}"
    return f"a {type(value).__name__}"
