"""Defines `Settings`: all settings, in the groups of `setting_groups.py`, `openstack_settings.py` and of
features.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import field

from berth.features import features
from bus.broker_urls import user_of
from bus.feature import SettingsGroup
from bus.vocabulary import KEEP_ACTS_SECONDS, KEEP_SECONDS

# Defines the groups of settings, except for Ironic (`berth/settings.py`) and features.
#
# A setting has one name for users: `BERTH_NAME` in the environment, `NAME` in a TOML file and after --set. In
# the code it is a field of its group; a group's `rename` maps the user's names to the fields.


class BusSettings(SettingsGroup, frozen=True, kw_only=True):
    """The connection to the message broker."""

    # URL of RabbitMQ; of a cluster with all nodes, as in amqp://user:password@host1:5672,host2:5672/vhost;
    # empty: an in-process bus, and all workers in one process
    amqp_url: str = ""
    exchange: str = "berth"  # exchange on RabbitMQ to which berth publishes all messages
    # URL of RabbitMQ's management API, for commands that administer users and for `berth doctor`, as in
    # http://127.0.0.1:15672; without a user, that of amqp_url; empty: the usual port of each host of amqp_url
    management_url: str = ""


class DatabaseSettings(SettingsGroup, frozen=True, kw_only=True):
    """The database in which workers store their records."""

    # URL of PostgreSQL, with one host or a list (h1:5432,h2:5432); empty: SQLite files in state_dir
    url: str = field(default="", name="database_url")
    # most connections of a worker process to each of its databases; of simultaneous transactions, others wait
    pool: int = field(default=5, name="database_pool")
    state_dir: str = ".berth"  # directory of SQLite files, of the in-process bus and of simulated agents


class CellSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of the cells: their names, brokers and databases (docs/cells.md)."""

    # names of all cells, or how many there are: 3 for c1, c2 and c3; in a TOML file, `[cells.NAME]` is the
    # table of one cell
    names: tuple[str, ...] = field(default=("c1", "c2", "c3", "c4"), name="cells")
    # URL of RabbitMQ for a cell's workers, by the cell's name; in a TOML file `broker`
    amqp_urls: dict[str, str] = field(default_factory=dict, name="cell_amqp_urls")
    # URL of a conductor's database, by its cell's name; in a TOML file `database`
    database_urls: dict[str, str] = field(default_factory=dict, name="cell_database_urls")
    # URL of a cell's separate RabbitMQ, by the cell's name; in a TOML file `ferry`
    ferry_urls: dict[str, str] = field(default_factory=dict, name="cell_ferry_urls")
    # queues of agents: own (each agent has its queues: fewest messages for an order), or shared (a gateway in
    # the cell's conductors relays orders and merges heartbeats: for hundreds of agents; docs/scale.md)
    agent_queues: str = "own"


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

    # names of the filters in their order, or changes of the default filters: +NAME adds a filter, -NAME
    # removes one; a custom filter is module:function; empty: the default filters
    filters: tuple[str, ...] = field(default=(), name="scheduler_filters")
    # multiplier of each weigher by its name, or changes of the default weighers: +NAME adds a weigher or
    # changes the multiplier of one; empty: the default weighers
    weighers: dict[str, float] = field(default_factory=dict, name="scheduler_weighers")
    # options of filters and weighers, by the name of the filter or weigher
    rules: dict[str, dict[str, Any]] = field(default_factory=dict, name="scheduler_rules")
    # how hosts are chosen without weighers of one's own: balanced, pack or spread; empty: balanced, if the
    # feature fragmentation is there (docs/scheduler.md)
    profile: str = field(default="", name="placement_profile")
    # number of best hosts among which the host of a request is drawn at random; 1: always the best host
    subset: int = field(default=1, name="host_subset_size")
    # difference of scores up to which two hosts count as equally good
    near: float = field(default=0.0, name="scheduler_near")


class RequestSettings(SettingsGroup, frozen=True, kw_only=True):
    """The interpretation of build requests: waiting time, tenants (docs/requests.md)."""

    max_wait: float = 7 * 86400.0  # longest time that a request may wait for capacity
    # whether a project with host aggregates of its own may use only their hosts: off, optional or required
    # optional: a project without such an aggregate may use all other hosts; required: it may use none
    tenant_aggregates: str = "off"
    # whether aggregates with the property trait:X=required accept only requests that require trait X
    isolate_aggregates: bool = False


class LimitSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"max_{name}"):
    """The largest numbers of what operators and projects may create. Lowered limits delete nothing."""

    aggregates: int = 20_000  # host aggregates


class PlacementHttpSettings(
    SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"placement_{name}"
):
    """The Placement API over HTTP (docs/http.md)."""

    http: str = ""  # address of the API as HOST:PORT; empty: the API is not served
    # authentication: noauth2 trusts every caller (development only), tokens reads placement_tokens; or the
    # method of a feature (docs/http.md)
    auth: str = "noauth2"
    tokens: str = ""  # file with the tokens of users and their roles
    policy: str = ""  # policy file in oslo.policy's format; empty: the default rules
    # whether a role needs its scope, as in Placement's option of this name: `admin` alone is not enough
    enforce_new_defaults: bool = False
    cors_origins: tuple[str, ...] = ()  # origins of web pages that may call the API (CORS)
    # seconds for which a connection is kept without a request after a response; 0: it is closed with the
    # response, as uWSGI does: the forked processes of a Nova service can share a connection that is kept
    keep_alive: float = 0.0


class RestSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"rest_{name}"):
    """The REST API for builds (docs/rest.md). `placement_auth` sets which tokens it accepts."""

    http: str = ""  # address of the API as HOST:PORT; empty: the API is not served


class ControlRoomSettings(
    SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"control_room_{name}"
):
    """The control room, berth's web UI (docs/control_room.md). `placement_auth` sets how users sign in."""

    # address of the web UI as HOST:PORT; auto: 127.0.0.1:8780 or a free port under `berth up`; off: none
    http: str = "auto"
    # host names under which browsers may open the web UI, in addition to IP addresses and localhost
    names: tuple[str, ...] = ()

    @property
    def listens(self) -> bool:
        """Return whether the control room has a configured address."""
        return self.http not in ("auto", "off")


class ConductorSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of cell conductors: the number of attempts for a build, and time limits."""

    max_attempts: int = 3  # number of hosts that are tried for one build
    build_timeout: float = 300.0  # time without a report of the agent; then the build tries the next host
    # limits of the accounts that `berth cell create` makes (docs/cells.md): connections, queue_bytes and so
    # on
    cell_limits: dict[str, float] = field(default_factory=dict)


class RetentionSettings(SettingsGroup, frozen=True, kw_only=True):
    """The time for which databases store what has ended (docs/running.md, "Growth")."""

    # time for which builds and moves are stored after their end, decisions (`berth why`), acts of clients and
    # services, and past states (`berth audit at`); a request with the id of an ended build is refused for
    # this time
    ended: float = field(default=KEEP_SECONDS, name="keep")
    # time for which the acts of operators are stored (docs/audit-log.md)
    acts: float = field(default=KEEP_ACTS_SECONDS, name="keep_acts")
    # number of placement's latest commits in its change log
    changes: int = field(default=20_000, name="keep_changes")


class AgentSettings(SettingsGroup, frozen=True, kw_only=True):
    """The agents of hosts and of Ironic's nodes (docs/agents.md)."""

    heartbeat: float = 10.0  # time between two heartbeats of a host
    # TCP port by which an agent probes whether it reaches another host; a refused connection also shows that
    # the host runs; 0: probe_command, or no probe
    probe_port: int = 0
    # command by which an agent probes another host, whose name and address are the last arguments; exit code
    # 0: reached, 1: not reached, else unknown
    probe_command: tuple[str, ...] = ()
    # whether guests without a record in placement are stopped instead of destroyed after a restore
    keep_unknown_guests: bool = False


class ProcessSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of every process: logs, metrics and limits."""

    log_level: str = "warning"  # least severe level that is logged: debug, info, warning or error
    log_format: str = "text"  # format of log lines: text, or json with an object a line (docs/logs.md)
    # address of Prometheus metrics as HOST:PORT; further processes of `berth up` use the next ports; empty:
    # metrics are not served
    metrics_http: str = ""
    # certificate file for TLS of the Placement API and the control room; a changed file is read again
    http_certificate: str = ""
    http_key: str = ""  # file with the key of that certificate
    # file with the token of the operator that runs commands, which is checked as placement_auth says; empty:
    # the system user, who may do everything that the broker's user may (docs/roles.md)
    operator_token_file: str = ""
    # processes of `berth up`: separate (one for each worker), compact (one for placement and scheduler, one
    # for conductors and agents: less work per boot on few cores), or auto (compact on at most 2 cores)
    layout: str = "auto"


# Defines the groups of settings with which berth uses Ironic.


def _of_ironic(name: str) -> str:
    return f"ironic_{name}"


class IronicConnectionSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The connection to Ironic's notifications and API (docs/ironic.md)."""

    amqp_url: str = ""  # URL of the RabbitMQ to which Ironic publishes; empty: berth reads no notifications
    # Ironic's configuration file, for its options control_exchange and versioned_notifications_topics; empty:
    # their defaults
    conf: str = ""
    # Nova's configuration file, such as /etc/nova/nova.conf, for the options of Nova that berth follows;
    # empty: their defaults
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
    # field of a node with its label, by level, as in rack=properties.rack
    labels_by: dict[str, str] = field(default_factory=dict)


class IronicSettings(SettingsGroup, frozen=True, kw_only=True):
    """The groups of settings with which berth uses Ironic."""

    connection: IronicConnectionSettings = IronicConnectionSettings()
    builds: IronicBuildSettings = IronicBuildSettings()
    nodes: IronicNodeSettings = IronicNodeSettings()

    @property
    def is_read(self) -> bool:
        """Return whether Ironic's REST API is configured."""
        return bool(self.connection.api)

    @property
    def is_heard(self) -> bool:
        """Return whether Ironic's notifications are configured."""
        return bool(self.connection.amqp_url)


# Defines the options of the simulated agents: a group of settings with a file and a table of its own.
#
# An option is `simulator.NAME` after --set, `BERTH_SIMULATOR_NAME` in the environment, and NAME in the TOML
# table `[simulator]` or in the TOML file that the setting `simulator` names.


SIMULATOR = "simulator"  # the setting that names the file of these options, or is a table of them
PREFIX = f"{SIMULATOR}."


class SimulatorSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"{PREFIX}{name}"):
    """The simulated agents: their hosts, and the durations and faults of their builds (docs/agents.md)."""

    hosts: int = 200  # number of simulated hosts in all cells together
    baremetal: int = 0  # number of simulated bare-metal nodes, in addition to the hosts
    agents_per_cell: int = 1  # number of simulated agents in each cell; they share the cell's simulated hosts
    zones: tuple[str, ...] = ()  # availability zones, assigned to the hosts in rotation
    # labels of hosts: for each level the number of neighbouring hosts with the same label (rack=20,row=100)
    labels: dict[str, float] = field(default_factory=dict)
    # CPU architectures (x86_64, aarch64 and so on), assigned to the hosts in rotation
    architectures: tuple[str, ...] = ("x86_64",)
    # machine types, assigned to hosts in rotation: flat, numa, sriov, vgpu, devices, of a file, module:Class
    drivers: tuple[str, ...] = ("flat",)
    machines: str = ""  # TOML file with further machine types
    # file provider.yaml in Nova's format, or a directory of such files: additional inventories of hosts
    provider_config: str = ""
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
    seed: int = 1  # seed of all durations and faults


# With at most so many processor cores, workers share processes by default. A process uses one core, and
# broker and database use another.
COMPACT_CORES = 2


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BadSetting(ValueError):
    """Error: a setting cannot be used; the text has its name, value and source."""


G = TypeVar("G", bound=SettingsGroup)


class Cell(msgspec.Struct, frozen=True):
    """A cell in the settings; an empty broker or database stands for the common broker or database."""

    name: str
    broker: str = ""  # the URL of its workers' RabbitMQ: a separate user, or another node of the cluster
    database: str = ""  # the URL of its conductor's database
    ferry: str = ""  # the URL by which its ferry connects to the cell's separate RabbitMQ; empty: no ferry

    @property
    def user(self) -> str:
        """Return the RabbitMQ user of the cell's workers."""
        return user_of(self.broker) or ""


if TYPE_CHECKING:

    class FeatureSettings(SettingsGroup, frozen=True, kw_only=True): ...

else:
    FeatureSettings = msgspec.defstruct(
        "FeatureSettings",
        [(feature.name, feature.settings, feature.settings()) for feature in features() if feature.settings],
        bases=(SettingsGroup,),
        namespace={"__doc__": "The settings of features, a group for each."},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


class Settings(SettingsGroup, frozen=True, kw_only=True):
    """All settings. Every setting has a default, so berth runs without any configuration."""

    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()
    cells: CellSettings = CellSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    requests: RequestSettings = RequestSettings()
    limits: LimitSettings = LimitSettings()
    placement: PlacementHttpSettings = PlacementHttpSettings()
    rest: RestSettings = RestSettings()
    control_room: ControlRoomSettings = ControlRoomSettings()
    ironic: IronicSettings = IronicSettings()
    features: FeatureSettings = FeatureSettings()
    conductor: ConductorSettings = ConductorSettings()
    keep: RetentionSettings = RetentionSettings()
    process: ProcessSettings = ProcessSettings()
    agents: AgentSettings = AgentSettings()
    simulator: SimulatorSettings = SimulatorSettings()

    def of(self, kind: type[G]) -> G:
        """Return the settings of a feature, which are of this class."""
        return next(group for group in msgspec.structs.astuple(self.features) if type(group) is kind)

    @property
    def embedded(self) -> bool:
        """Return whether all workers run in one process, without RabbitMQ."""
        return not self.bus.amqp_url

    @property
    def compact(self) -> bool:
        """Return whether `berth up` runs placement and scheduler in one process, and the conductors and
        agents of a broker in another.
        """
        layout = self.process.layout
        return layout == "compact" or (layout == "auto" and usable_cores() <= COMPACT_CORES)

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
        """Return the cell of Ironic nodes that have no entry in the setting `ironic_cells`: the value of the
        setting's key "*", or "" without the key. If the setting is empty, return the first cell.
        """
        nodes = self.ironic.nodes
        return nodes.cells.get("*", "") if nodes.cells else self.cell_names[0]

    def cell(self, name: str) -> Cell:
        """Return a cell of this name, with the common broker and database unless it has separate URLs."""
        known = next((cell for cell in self.every_cell if cell.name == name), Cell(name))
        everybodys = self.database.url or f"sqlite+aiosqlite:///{Path(self.database.state_dir).resolve()}/"
        broker = known.broker or known.ferry or self.bus.amqp_url
        return Cell(name, broker, known.database or everybodys, known.ferry)

    def database_for(self, store: str) -> str:
        """Return the URL of the database of a store, such as `cell_c1` or `scheduler`. By default each has a
        separate schema or file.
        """
        return self.cell(store.removeprefix("cell_") if store.startswith("cell_") else "").database

    def having(self, **named: Any) -> "Settings":
        """Return a copy of the settings with some values changed, given by their names for users; the value
        of `simulator` is a mapping of the simulator's options that change.
        """
        options: Mapping[str, Any] = named.pop("simulator", {})
        named |= {f"{PREFIX}{option}": value for option, value in options.items()}
        if strange := named.keys() - KINDS.keys():
            raise TypeError(f"no settings: {', '.join(sorted(strange))}")
        return _made(Settings, {**settings_by_name(self), **named})


def group_name(path: Sequence[str]) -> str:
    """Return the name of a group of settings, from its path."""
    return " ".join(path).removeprefix("features ")


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
GROUP_OF: Mapping[str, str] = {name: group_name(path[:-1]) for name, path, _ in _DECLARED}


def settings_by_name(settings: Settings) -> dict[str, Any]:
    """Return a mapping of each setting's name, as users write it, to its value."""
    return {name: attrgetter(".".join(path))(settings) for name, path, _ in _DECLARED}


def clouds_of_features(settings: Settings) -> list[tuple[str, str]]:
    """Return the settings of features that name an entry of clouds.yaml, with this entry, if they are set."""
    values = settings_by_name(settings)
    names = (name for feature in features() for name in feature.clouds)
    return [(name, values[name]) for name in names if values[name]]


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
    """Describe a refused value of a setting for an error message. A text may be a password, so only its
    length is given.
    """
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
