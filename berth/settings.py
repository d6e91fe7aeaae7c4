"""All settings, as values in groups.

Outside of the code each setting has one name: `BERTH_NAME` in the environment, `NAME` in a TOML file and
after --set. In the code it is a field of its group; a group's `rename` maps one to the other.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import field


class BadSetting(ValueError):
    """A setting that cannot be used; the text names it, its value and where it came from."""


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of groups of settings. Times are in seconds."""


G = TypeVar("G", bound=SettingsGroup)


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell, with its broker and database if they are separate."""

    name: str
    broker: str = ""  # the URL of its workers' RabbitMQ: a separate user, or another node of the cluster
    database: str = ""  # the URL of its conductor's database
    ferry: str = ""  # the URL by which its ferry connects to the cell's separate RabbitMQ; empty: it has none

    @property
    def user(self) -> str:
        """Return the RabbitMQ user of its workers."""
        return urlsplit(self.broker).username or ""


class BusSettings(SettingsGroup, frozen=True, kw_only=True):
    """The broker that carries the messages."""

    amqp_url: str = ""  # of the RabbitMQ; empty: the in-process bus
    exchange: str = "berth"  # where all topics are published
    queue_type: str = "quorum"  # of durable queues; or classic


class DatabaseSettings(SettingsGroup, frozen=True, kw_only=True):
    """Where the workers keep what they must not forget."""

    url: str = field(default="", name="database_url")  # empty: SQLite files in state_dir
    state_dir: str = ".berth"  # the directory of all that is kept without a PostgreSQL


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
    """Choosing hosts (docs/scheduler.md)."""

    # in this order; empty: the default ones. A custom filter is module:function
    filters: tuple[str, ...] = field(default=(), name="scheduler_filters")
    # name: multiplier; empty: the default ones
    weighers: dict[str, float] = field(default_factory=dict, name="scheduler_weighers")
    # name of a rule or weigher: its options
    rules: dict[str, dict[str, Any]] = field(default_factory=dict, name="scheduler_rules")
    subset: int = field(default=1, name="host_subset_size")  # among so many of the best one is drawn
    near: float = field(default=0.0, name="scheduler_near")  # scores no further apart count as equal


class RequestSettings(SettingsGroup, frozen=True, kw_only=True):
    """Reading build requests (docs/requests.md)."""

    pci_aliases: dict[str, str] = {}  # name: CLASS, traits, numa=legacy, preferred, required or socket
    large_pages: tuple[str, ...] = ("1GB", "2MB")  # what hw:mem_page_size=large tries, in this order
    # hw_disk_bus and similar image properties become required traits of the host
    image_metadata_traits: bool = False
    image_type_traits: bool = False  # so is an image's disk_format
    max_wait: float = 7 * 86400.0  # seconds a request may wait for room
    tenant_aggregates: bool = False  # a project with aggregates is restricted to them
    tenant_aggregates_required: bool = False  # and one without has no hosts
    isolate_aggregates: bool = False  # aggregates with trait:X=required accept only requests that require X


class PlacementHttpSettings(
    SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"placement_{name}"
):
    """The Placement API over HTTP (docs/http.md)."""

    http: str = ""  # HOST:PORT; empty: not served
    auth: str = "noauth2"  # believes everybody, for development; or tokens
    tokens: str = ""  # the file of tokens
    policy: str = ""  # a policy file; empty: the default rules
    enforce_new_defaults: bool = False  # a lone `admin` may no longer do everything
    cors_origins: tuple[str, ...] = ()  # origins whose pages may call the API (CORS)
    noauth_anywhere: bool = False  # noauth2 also where other machines can reach it
    http_connections: int = 1000  # concurrent connections; at most half of the process's file limit


class ControlRoomSettings(
    SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"control_room_{name}"
):
    """The control room (docs/control_room.md). Its authentication is placement_auth."""

    http: str = "auto"  # HOST:PORT; auto: `berth up` takes 127.0.0.1:8780, or any free port; off: nowhere
    # host names by which browsers may call it, in addition to addresses and localhost
    names: tuple[str, ...] = ()

    @property
    def listens(self) -> bool:
        return self.http not in ("auto", "off")


def _of_ironic(name: str) -> str:
    return f"ironic_{name}"


class IronicNewsSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The notifications of the Ironic that is followed (docs/ironic.md)."""

    amqp_url: str = ""  # the RabbitMQ that Ironic notifies; empty: no notifications
    exchange: str = "ironic"  # where it publishes them
    topics: tuple[str, ...] = ("ironic_versioned_notifications",)  # by which it publishes them
    queue: str = "berth.ironic_sync"  # ours, on that RabbitMQ


class IronicApiSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """Ironic's API."""

    url: str = field(default="", name="ironic_api_url")  # empty: from ironic_cloud; without both, no reads
    # the entry of clouds.yaml with the credentials; envvars: the OS_* variables; empty: no authentication
    cloud: str = ""


class IronicSweepSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """Reading Ironic's nodes: how often and how fast."""

    sweep_seconds: float = 60.0  # from one sweep over recent changes to the next
    share_gone: float = 0.1  # the largest share of nodes that is removed in one sweep
    skip_reserve_in_use: bool = False  # an available node with an instance stays open


class IronicBuildSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """Deploying on Ironic's nodes: the number of agents, and their patience."""

    build_patience: float = 3600.0  # in one state; then the conductor receives no further progress
    maintenance_patience: float = 300.0  # in maintenance and not yet deployed; then the build goes elsewhere
    agents_per_cell: int = 1  # that `berth up` runs: they share the nodes


class IronicNodeSettings(SettingsGroup, frozen=True, kw_only=True, rename=_of_ironic):
    """The selection of Ironic's nodes, and their cells, zones and aggregates."""

    conductor_groups: tuple[str, ...] = ()  # - is the one without a name
    shards: tuple[str, ...] = ()  # only nodes of the named shards; empty: all; the same for the next two
    owners: tuple[str, ...] = ()  # nodes with the named owners
    resource_classes: tuple[str, ...] = ()  # nodes of the resource classes
    cell: str = ""  # cell of nodes without a mapping; empty and no mapping: the first of `cells`
    cell_by: str = ""  # conductor_group, owner, ..., properties.NAME: its value picks the cell
    cells: dict[str, str] = {}  # value: cell
    agents: dict[str, str] = {}  # cell: an agent of another system that builds there
    zone: str = ""  # zone of nodes without the key of zone_by
    zone_by: str = ""  # as cell_by: its value is the zone
    aggregates_by: tuple[str, ...] = ()  # keys, or zone: nodes of one value share an aggregate


class IronicSettings(SettingsGroup, frozen=True, kw_only=True):
    """The Ironic that is followed."""

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


class ConductorSettings(SettingsGroup, frozen=True, kw_only=True):
    """Building in a cell: attempts, time limits, and the limits of its accounts."""

    max_attempts: int = 3  # hosts that are tried for one build
    build_timeout: float = 300.0  # without a report of the agent; then the next host is tried
    delete_timeout: float = (
        600.0  # then a build is deleted, and its host keeps its room until its agent is back
    )
    cleanup_timeout: float = 86400.0  # then that agent is given up, and the room is free
    agent_lease: float = 2.0  # seconds for which an agent may act on bare metal without renewing its lease
    # of the accounts that `berth cell add` makes (docs/cells.md): connections, queue_bytes, ...
    cell_limits: dict[str, float] = field(default_factory=dict)


class SimulatorSettings(SettingsGroup, frozen=True, kw_only=True):
    """The simulated agents; in a TOML file these are in the table [simulator]."""

    agents_per_cell: int = 1  # that share its simulated hosts
    hosts: int = 200  # over all cells
    baremetal: int = 0  # simulated free nodes, in addition to the hosts
    zones: tuple[str, ...] = ()  # dealt out over the hosts
    architectures: tuple[str, ...] = ("x86_64",)  # assigned to hosts in rotation: aarch64, ...
    # Kinds of machines, dealt out too: flat, numa, sriov, vgpu, devices, or of the file (docs/agents.md)
    drivers: tuple[str, ...] = field(default=("flat",), name="compute_drivers")
    machines: str = field(default="", name="compute_machines")  # a TOML file of more of them
    # An operator's provider.yaml, or a directory of such files: additional inventories of hosts
    provider_config: str = field(default="", name="compute_provider_config")
    heartbeat: float = 10.0  # from one heartbeat of a host to the next
    build_time: str = "exponential:0.1"  # how long a build takes: constant:1, uniform:1,3, lognormal:1,0.5
    fail: float = 0.0  # share of builds that fail on their first host and are tried on the next
    abort: float = 0.0  # share of builds that fail permanently
    hang: float = 0.0  # share of builds that never report an end
    move_fail: float = 0.0  # share of each phase of moves that fails: pre-checks, copies, starts, rebuilds
    move_hang: float = 0.0  # share of phases that never do
    move_time: str = ""  # how long a phase takes; empty: as builds
    crash_after: int = 0  # an agent loses power after so many builds, and comes back
    seed: int = 1  # of all random faults
    # after a restore, stop guests without a record in placement instead of destroying them
    spare_unknown_guests: bool = False


class ProcessSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of every process."""

    log_level: str = "warning"  # or debug, info, error
    log_format: str = "text"  # or json: an object a line (docs/logs.md)
    # of the first process; further processes of `berth up` use the following ports; 0: none
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"  # the address that serves them; 0.0.0.0: all interfaces
    drain: float = 10.0  # seconds to complete current messages after a stop
    cells_a_process: int = 1  # under `berth up`: so many cells' conductors in one process, and their agents


class Settings(SettingsGroup, frozen=True, kw_only=True):
    """Every setting, with the default that serves a newcomer."""

    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()
    cells: tuple[Cell, ...] = tuple(map(Cell, ("c1", "c2", "c3", "c4")))
    scheduler: SchedulerSettings = SchedulerSettings()
    requests: RequestSettings = RequestSettings()
    placement: PlacementHttpSettings = PlacementHttpSettings()
    control_room: ControlRoomSettings = ControlRoomSettings()
    ironic: IronicSettings = IronicSettings()
    conductor: ConductorSettings = ConductorSettings()
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
        return tuple(cell.name for cell in self.cells)

    @property
    def metal_cells(self) -> tuple[str, ...]:
        """Return the cells with Ironic nodes, in the order of `cells`."""
        nodes = self.ironic.nodes
        return tuple(name for name in self.cell_names if name in {*nodes.cells.values(), self.metal_cell})

    @property
    def metal_cell(self) -> str:
        """Return the cell of nodes that no mapping assigns; empty: such nodes are not selected."""
        nodes = self.ironic.nodes
        return nodes.cell or ("" if nodes.cells else self.cells[0].name)

    def cell(self, name: str) -> Cell:
        """Return the cell with all values; those it lacks are the common ones."""
        known = next((cell for cell in self.cells if cell.name == name), Cell(name))
        everybodys = self.database.url or f"sqlite+aiosqlite:///{Path(self.database.state_dir).resolve()}/"
        broker = known.broker or known.ferry or self.bus.amqp_url
        return Cell(name, broker, known.database or everybodys, known.ferry)

    def database_for(self, store: str) -> str:
        """Return the URL of a worker's database. By default each has its own schema or file."""
        return self.cell(store.removeprefix("cell_") if store.startswith("cell_") else "").database

    def having(self, **named: Any) -> "Settings":
        """Return the settings with the values, by their external names."""
        if strange := named.keys() - KINDS.keys():
            raise TypeError(f"no settings: {', '.join(sorted(strange))}")
        return _made(Settings, {**by_name(self), **named})


CELLS: Mapping[str, type] = {  # settings that define cells: names, and values of each cell
    "cells": tuple[str, ...],
    "cell_amqp_urls": dict[str, str],
    "cell_database_urls": dict[str, str],
    "cell_ferry_urls": dict[str, str],
}


def _declared(
    kind: Any = Settings, group: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield (external name, path to its field, type) of every setting."""
    for member in msgspec.structs.fields(kind):
        if member.type == tuple[Cell, ...]:
            yield from ((name, (member.name, name), type_) for name, type_ in CELLS.items())
        elif isinstance(member.type, type) and issubclass(member.type, SettingsGroup):
            yield from _declared(member.type, (*group, member.name))
        else:
            yield member.encode_name, (*group, member.name), member.type


_DECLARED = tuple(_declared())
KINDS: Mapping[str, Any] = {name: kind for name, _, kind in _DECLARED}
GROUP_OF: Mapping[str, str] = {name: " ".join(path[:-1]) for name, path, _ in _DECLARED}


SIMULATOR = frozenset(name for name, group in GROUP_OF.items() if group == "compute")


def by_name(settings: Settings) -> dict[str, Any]:
    """Return every setting's value by its external name."""
    found: dict[str, Any] = {}
    for name, path, _ in _DECLARED:
        if name in CELLS:
            continue
        value: Any = settings
        for part in path:
            value = getattr(value, part)
        found[name] = value
    return {
        **found,
        "cells": settings.cell_names,
        "cell_amqp_urls": {cell.name: cell.broker for cell in settings.cells if cell.broker},
        "cell_database_urls": {cell.name: cell.database for cell in settings.cells if cell.database},
        "cell_ferry_urls": {cell.name: cell.ferry for cell in settings.cells if cell.ferry},
    }


def _made(kind: type[G], values: Mapping[str, Any]) -> G:
    parts: dict[str, Any] = {}
    for member in msgspec.structs.fields(kind):
        if member.type == tuple[Cell, ...]:
            own = [values[urls] for urls in ("cell_amqp_urls", "cell_database_urls", "cell_ferry_urls")]
            parts[member.name] = tuple(
                Cell(name, *(urls.get(name, "") for urls in own)) for name in values["cells"]
            )
        elif isinstance(member.type, type) and issubclass(member.type, SettingsGroup):
            parts[member.name] = _made(member.type, values)
        else:
            parts[member.name] = values[member.encode_name]
    return kind(**parts)


def names_a_file(database_url: str) -> bool:
    """Return whether the URL is an SQLite file, which can hold the store of one worker only."""
    return database_url.startswith("sqlite") and not database_url.endswith("/")


def described(value: Any) -> str:
    """Return a rejected value for an error message. A text may be a secret, so only its length is
    returned.
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
