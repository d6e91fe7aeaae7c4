"""The state of a running berth and its services as `berth doctor` observes it, and the findings about it."""

import msgspec

from berth.kit.findings import Finding
from bus.problems import KnownProblem


class DurableQueue(msgspec.Struct, frozen=True):
    """A durable queue of an agent or a gateway, as RabbitMQ's management API counted it."""

    name: str  # without the prefix that all queues of a berth have at the broker
    at_broker: str
    messages: int = 0
    readers: int = 0

    @property
    def worker(self) -> str:
        return self.name.partition(":")[0]

    @property
    def cell(self) -> str:
        return self.worker.split(".")[1]


class ManagementSeen(msgspec.Struct, frozen=True):
    """The state of a RabbitMQ cluster, as its management API reports it."""

    alarms: tuple[str, ...] = ()  # memory, disk, with the nodes
    clock: float | None = None  # seconds by which its clock is ahead; None: unknown
    nodes: dict[str, bool] = {}  # whether each node runs
    partitioned: tuple[str, ...] = ()  # nodes that RabbitMQ reports as partitioned
    members: dict[str, tuple[str, ...]] = {}  # the nodes with a member of each quorum queue
    # quorum queues of which too few members run: they have no leader, and confirm no messages
    leaderless: tuple[str, ...] = ()
    # the node of each durable classic queue that receives berth's messages, or may if the node is down
    on_one_node: dict[str, str] = {}
    disabled: tuple[str, ...] = ()  # stable feature flags that are not enabled
    deprecated: tuple[str, ...] = ()  # deprecated features that are in use
    vhost: str = "/"
    of_agents: tuple[DurableQueue, ...] = ()  # queues of agents and gateways


class BrokerSeen(msgspec.Struct, frozen=True):
    """The state of a RabbitMQ broker, as observed with the permissions of one user."""

    place: str
    version: str = ""
    problem: str = ""  # why it could not be reached
    fresh: bool = False  # berth has created nothing there yet
    stuck: bool = False  # the broker accepted no message in time
    alarm: str = ""  # why it refuses messages, as it reports to its clients: "low on disk"
    refused: tuple[str, ...] = ()  # operations that this user is not permitted
    management: ManagementSeen = ManagementSeen()


class PackageSeen(msgspec.Struct, frozen=True):
    """The tables of a worker or feature in a database."""

    name: str
    known: tuple[str, ...] = ()  # the migrations that this version has, in order
    revision: str = ""  # the last migration that was applied; empty: none


class DatabaseSeen(msgspec.Struct, frozen=True):
    """The state of one database."""

    store: str
    place: str
    version: str = ""  # version of PostgreSQL; empty: SQLite
    problem: str = ""
    packages: tuple[PackageSeen, ...] = ()
    unlisted: tuple[str, ...] = ()  # packages that have tables there, and are not in this version
    foreign: tuple[str, ...] = ()  # tables that no migration made, if no package has tables there
    clock: float | None = None

    @property
    def was_made(self) -> bool:
        """Return whether berth's migrations were applied."""
        return any(package.revision for package in self.packages)


class IronicSeen(msgspec.Struct, frozen=True):
    """The observed state of Ironic's API, and its nodes on which nothing can be placed."""

    problem: str = ""  # why it could not be read
    nodes: int = 0
    without_class: int = 0  # nodes without a resource class
    some: tuple[str, ...] = ()  # names of some of these nodes


class BerthSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a berth with its services, read at one time."""

    python: tuple[int, ...]
    disk: float | None = None  # free share of the disk with the state directory
    state_dir: str = ""
    brokers: tuple[BrokerSeen, ...] = ()
    problems: tuple[KnownProblem, ...] | None = None  # the list of problems; None: the bus cannot be reached
    queues: frozenset[str] = frozenset()  # the queues that exist, of those that the settings' workers use
    missing: tuple[str, ...] = ()  # workers without any queue
    absent_cells: tuple[str, ...] = ()  # cells of the settings of which nothing was ever started
    databases: tuple[DatabaseSeen, ...] = ()
    authentication: Finding | None = None  # of a feature's method of authentication; None: of none
    ironic: IronicSeen | None = None  # None: no Ironic is configured
    bus: str = ""  # why the bus cannot be reached
