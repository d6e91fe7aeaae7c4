"""The bridge's worker: it serves Nova's scheduler RPC and mirrors Nova's hosts."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from berth.kit import added
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import HostReported
from bus.topics import Query
from bus.worker import Worker
from features.nova.core.translation import BridgeOptions
from features.nova.databases import NovaDatabases
from features.nova.messages import SELECT_HOSTS
from features.nova.mirror import Mirror, MirrorQueries
from features.nova.notifying import SchedulerNotifications
from features.nova.oslo.client import RpcClient
from features.nova.oslo.server import RpcAddress, RpcServer
from features.nova.scheduling import JoinGroup, NovaScheduling, SchedulingQueries

SELECT_TIMEOUT = 60.0  # seconds: a query that is not answered by then is asked again
FALLBACK_TIMEOUT = 600.0
MIRROR_ASKS = (
    topics.CELLS,
    topics.EDIT_CELL,
    topics.PROVIDERS,
    topics.EDIT_OWNER,
    topics.AGGREGATES,
    topics.EDIT_AGGREGATE,
)
ASKED = (SELECT_HOSTS, topics.RELEASE, *MIRROR_ASKS)


@dataclass(frozen=True)
class BridgePart:
    """The addition of a join to the bridge."""

    join_group: JoinGroup  # adds a server group of Nova to a query for hosts
    asks: tuple[Query[Any, Any], ...]


@dataclass(frozen=True)
class BridgeJoin:
    """The value PART of a join's module `nova_bridge`: `make` makes its addition to the bridge."""

    make: Callable[[Bus], BridgePart]


def bridge_parts(bus: Bus) -> list[BridgePart]:
    """Return the additions of all joins to the bridge."""
    return [join.make(bus) for join in added(BridgeJoin, "nova_bridge")]


@dataclass(frozen=True, kw_only=True)
class FollowedNova:
    """The Nova that berth schedules for: its RPC broker and databases, and the options for answering it."""

    rpc: RpcAddress
    databases: NovaDatabases
    options: BridgeOptions = field(default_factory=BridgeOptions)
    wait: float = 0.0  # seconds that a call may wait for capacity
    notifications: SchedulerNotifications | None = None  # None: no notifications are published
    fallback: RpcAddress | None = None  # of a nova-scheduler for requests that berth cannot judge


def nova_bridge(nova: FollowedNova, bus: Bus, clock: Clock, parts: Sequence[BridgePart] = ()) -> Worker:
    """Return the worker that answers Nova's scheduler RPC and copies Nova's cells, hosts and aggregates."""
    mirror = mirror_of(nova.databases, bus, clock)
    client = None if nova.fallback is None else RpcClient(nova.fallback, name="berth openstack", clock=clock)
    scheduling = NovaScheduling(
        SchedulingQueries(
            select=bus.asker(SELECT_HOSTS, timeout=SELECT_TIMEOUT),
            release=bus.asker(topics.RELEASE),
            join_group=parts[0].join_group if parts else None,
            fallback=None if client is None else partial(client.forward, timeout=FALLBACK_TIMEOUT),
            still_waits=nova.databases.still_waits,
        ),
        mirror,
        nova.options,
        clock,
        wait=nova.wait,
        notify=nova.notifications.add if nova.notifications else None,
    )
    server = RpcServer(nova.rpc, scheduling.answer, name="berth openstack", clock=clock)
    stops: list[Callable[[], Awaitable[None]]] = [nova.databases.close]
    if client is not None:
        stops.append(client.close)
    return Worker(
        "nova_bridge",
        asks=(*ASKED, *(query for part in parts for query in part.asks)),
        starts=[mirror.refresh],
        runs=[mirror.run, server.run, *([nova.notifications.run] if nova.notifications else [])],
        stops=stops,
        announces=frozenset({HostReported}),
    )


def mirror_of(databases: NovaDatabases, bus: Bus, clock: Clock) -> Mirror:
    queries = MirrorQueries(
        cells=bus.asker(topics.CELLS),
        edit_cell=bus.asker(topics.EDIT_CELL),
        providers=bus.asker(topics.PROVIDERS),
        edit_owner=bus.asker(topics.EDIT_OWNER),
        aggregates=bus.asker(topics.AGGREGATES),
        edit_aggregate=bus.asker(topics.EDIT_AGGREGATE),
    )
    return Mirror(databases, queries, bus.publish, clock)
