"""Creates berth's workers for Ironic and a client of Ironic's API; imported only if needed (loads slowly)."""

from collections.abc import Callable, Iterable
from typing import Any

from berth.features import parts_of
from berth.kit.oslo_conf import BadConf, OsloConf
from berth.kit.urls import check_broker_url
from berth.openstack_conf import ironic_conf, ironic_options, keeps_used_nodes
from berth.settings import BadSetting, IronicNodeSettings, Settings
from berth.worker_roles import Role
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.worker import Worker
from ironic_sync.agent.right import NodeRight
from ironic_sync.agent.worker import metal_agent, notification_source
from ironic_sync.api import IronicApi
from ironic_sync.core.selection import AGENT, NodeSelection
from ironic_sync.extension import ForMetal, MetalNeeds
from ironic_sync.notifications import Notifications
from ironic_sync.openstack import Access, cloud_access
from ironic_sync.worker import FollowedIronic, ironic_sync

_SELECTABLE = {  # name of a node's field in the settings → in the selection
    "conductor_group": "conductor_groups",
    "shard": "shards",
    "owner": "owners",
    "resource_class": "resource_classes",
}
_NOTIFICATIONS_KEPT = 600.0  # seconds that a broker stores notifications for an absent agent


def check(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    """Check the settings of Ironic; call `refuse` with the name of each wrong setting, and the reason."""
    ironic = settings.ironic
    if ironic.is_heard:
        check_broker_url(ironic.connection.amqp_url, "ironic_amqp_url", refuse)
    try:
        ironic_conf(ironic.connection.conf)
    except BadConf as problem:
        refuse("ironic_conf", str(problem))
    try:
        OsloConf(ironic.connection.nova_conf)
    except BadConf as problem:
        refuse("nova_conf", str(problem))
    try:
        if ironic.is_read:
            _access(settings)
    except ValueError as problem:
        refuse("ironic_api", str(problem))
    _check_selection(settings, refuse)


def _check_selection(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    nodes = settings.ironic.nodes
    for name, cells in {"ironic_cells": nodes.cells.values(), "ironic_agents": nodes.agents}.items():
        for cell in cells:
            if cell not in settings.cell_names:
                refuse(name, f"there is no cell {cell!r}; there are: {', '.join(settings.cell_names)}")
    for name, keys in (
        ("ironic_selection", lambda: _selected(nodes.selection)),
        ("ironic_zone_by", lambda: {"zone_by": nodes.zone_by}),
        ("ironic_aggregates_by", lambda: {"aggregates_by": nodes.aggregates_by}),
        ("ironic_cell_by", lambda: _cells(nodes)),
    ):
        try:
            NodeSelection(cell="any", **keys())
        except ValueError as problem:
            refuse(name, str(problem))
    if settings.ironic.is_heard and not settings.ironic.is_read and selection(settings).only_reads_place:
        refuse("ironic_api", "no notification contains a node's shard: name Ironic's API")


def access(settings: Settings) -> Access:
    """Read the certificate files, and return the address and credentials of Ironic's API."""
    found = _access(settings)
    if found.ca_file or found.cert_file:
        try:
            found.trust()
        except OSError as problem:
            files = ", ".join(filter(None, (found.ca_file, found.cert_file, found.key_file)))
            why = problem.strerror or str(problem)
            raise BadSetting(f"ironic_api = {settings.ironic.connection.api!r}: {files}: {why}") from None
    return found


def _access(settings: Settings) -> Access:
    api = settings.ironic.connection.api
    return Access(url=api) if ":" in api else cloud_access(api)


def selection(settings: Settings) -> NodeSelection:
    """Return the rules by which berth selects Ironic's nodes, and assigns cells, zones and aggregates."""
    nodes = settings.ironic.nodes
    return NodeSelection(
        **_selected(nodes.selection),
        **_cells(nodes),
        cell=settings.metal_cell,
        agents=nodes.agents,
        zone=nodes.zone,
        zone_by=nodes.zone_by,
        aggregates_by=nodes.aggregates_by,
        labels_by=nodes.labels_by,
    )


def _selected(selection: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as `owner=p1` to a mapping of an Ironic node's fields to the accepted values."""
    found: dict[str, tuple[str, ...]] = {}
    for text in selection:
        field, _, value = text.partition("=")
        if field not in _SELECTABLE or not value:
            raise ValueError(
                f"takes FIELD=VALUE with one of the fields {', '.join(_SELECTABLE)}, not {text!r}"
            )
        name = _SELECTABLE[field]
        found[name] = (*found.get(name, ()), value)
    return found


def _cells(nodes: IronicNodeSettings) -> dict[str, Any]:
    """Return the node field that decides the cell (`cell_by`), and the cell for each value of the field
    (`cells`), without the entry "*" for all other nodes.
    """
    return {
        "cell_by": nodes.cell_by,
        "cells": {value: cell for value, cell in nodes.cells.items() if value != "*"},
    }


def followed(settings: Settings, clock: Clock) -> FollowedIronic:
    """Return what the ironic worker needs: the selection of nodes, notifications, and a client of the API."""
    ironic = settings.ironic
    return FollowedIronic(
        selection=selection(settings),
        notifications=_notifications(settings, clock) if ironic.is_heard else None,
        api=IronicApi(access(settings), clock) if ironic.is_read else None,
        skip_reserve_in_use=keeps_used_nodes(settings),
    )


def _notifications(
    settings: Settings, clock: Clock, receiver: str = "", kept_seconds: float | None = None
) -> Notifications:
    options = ironic_options(settings)
    return Notifications(
        settings.ironic.connection.amqp_url,
        exchange=options.exchange,
        topics=options.topics,
        # a different name for each berth on the same RabbitMQ
        queue=f"{settings.bus.exchange}.ironic_sync{receiver}",
        quorum=kept_seconds is None,
        kept_seconds=kept_seconds,
        clock=clock,
    )


def sync(settings: Settings, bus: Bus) -> Worker:
    """Return the ironic worker; without an Ironic, only events of tools like `berth ironic publish` are
    applied.
    """
    if not (settings.ironic.is_heard or settings.ironic.is_read):
        return ironic_sync(skip_reserve_in_use=keeps_used_nodes(settings))
    ironic = followed(settings, bus.clock)
    return ironic_sync(ironic, bus.publish, bus.asker(topics.PROVIDERS), clock=bus.clock)


def metal(settings: Settings, role: Role, bus: Bus) -> Worker:
    """Return the worker (an agent) that deploys instances on a cell's bare-metal nodes by Ironic's API."""
    cell, pool, clock, notifications = role.cell, AGENT.format(cell=role.cell), bus.clock, None
    agent = role.agent or pool
    if settings.ironic.is_heard:  # every process receives all notifications, on a queue that expires after it
        receiver = f".{agent}.{clock.uuid()[:8]}"
        notifications = notification_source(_notifications(settings, clock, receiver, _NOTIFICATIONS_KEPT))
    api = IronicApi(access(settings), clock)
    needs = MetalNeeds(agent=agent, cell=cell, pool=pool, bus=bus, api=api, selection=selection(settings))
    parts = parts_of(ForMetal, "metal", needs, settings)
    if not parts and agent != pool:
        raise BadSetting(f"--agent {agent!r}: {pool} is the only agent of these nodes")
    return metal_agent(
        agent,
        cell,
        api,
        parts[0].right if parts else NodeRight(),
        pool=pool,
        notifications=notifications,
        period=settings.agents.heartbeat,
        patience=settings.ironic.builds.build_patience,
        clock=clock,
    )
