"""Defines the groups of settings, except for Ironic (`berth/openstack_settings.py`) and features.

A setting has one name for users: `BERTH_NAME` in the environment, `NAME` in a TOML file and after --set. In
the code it is a field of its group; a group's `rename` maps the user's names to the fields.
"""

from typing import Any

import msgspec
from msgspec import field

from bus.feature import SettingsGroup
from bus.vocabulary import KEEP_ACTS_SECONDS, KEEP_SECONDS


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

    # names of all cells; in a TOML file, `[cells.NAME]` is the table of one cell
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
    # number of best hosts among which the host of a request is drawn at random; 1: always the best host
    subset: int = field(default=1, name="host_subset_size")
    # difference of scores up to which two hosts count as equally good
    near: float = field(default=0.0, name="scheduler_near")


class RequestSettings(SettingsGroup, frozen=True, kw_only=True):
    """The interpretation of build requests: PCI aliases, traits, tenants (docs/requests.md)."""

    # PCI aliases of flavors by name: resource class, traits, and numa=legacy, preferred, required or socket
    pci_aliases: dict[str, str] = field(default_factory=dict)
    # what of an image becomes required traits of the host: type (its disk_format), metadata (properties such
    # as hw_disk_bus), or both
    image_traits: tuple[str, ...] = ()
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
    # federation protocol at Keystone by which users may sign in, such as openid; empty: only with a password
    sso: str = ""
    # URL of Keystone for browsers, for single sign-on; empty: the auth_url of placement_cloud
    sso_url: str = ""

    @property
    def listens(self) -> bool:
        return self.http not in ("auto", "off")


class ConductorSettings(SettingsGroup, frozen=True, kw_only=True):
    """Settings of cell conductors: the number of attempts for a build, and time limits."""

    max_attempts: int = 3  # number of hosts that are tried for one build
    build_timeout: float = 300.0  # time without a report of the agent; then the build tries the next host
    # limits of the accounts that `berth cell add` makes (docs/cells.md): connections, queue_bytes and so on
    cell_limits: dict[str, float] = field(default_factory=dict)


class RetentionSettings(SettingsGroup, frozen=True, kw_only=True):
    """The time for which databases store what has ended (docs/running.md, "Growth")."""

    # time for which builds and moves are stored after their end, decisions (`berth why`), acts of clients and
    # services, and past states (`berth at`); a request with the id of an ended build is refused for this time
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
    spare_unknown_guests: bool = False


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
