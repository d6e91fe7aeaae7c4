"""Ironic as the settings have it. Imported only where there is one: what speaks HTTP takes long to load."""

from collections.abc import Callable

from berth.settings import BadSetting, Settings, by_name
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.worker import Worker
from ironic_sync import Access, FollowedIronic, IronicApi, NodeSelection, Notifications, ironic_sync
from ironic_sync.agent import metal_agent, news_of
from ironic_sync.core.selection import AGENT

_NEWS_KEPT = 600.0  # seconds for which a broker keeps the news of an agent that may never come back


def check(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    """Of the settings that only concern Ironic: `refuse` is called with the name of one, and why."""
    if settings.ironic.news.amqp_url and not settings.ironic.news.amqp_url.startswith(
        ("amqp://", "amqps://")
    ):
        refuse("ironic_amqp_url", "must begin with amqp:// or amqps://")
    for name in ("ironic_exchange", "ironic_queue", "ironic_topics"):
        if not by_name(settings)[name]:
            refuse(name, "must not be empty")
    if settings.ironic.sweeps.pages_per_second <= 0:
        refuse("ironic_pages_per_second", "must be more than 0")
    _check_access(settings, refuse)
    _check_selection(settings, refuse)


def _check_access(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    if settings.ironic.api.auth not in ("none", "basic", "keystone"):
        refuse("ironic_auth", "is none, basic or keystone")
    if settings.ironic.api.url and not settings.ironic.api.url.startswith(("http://", "https://")):
        refuse("ironic_api_url", "must begin with http:// or https://")
    if settings.ironic.api.key_file and not settings.ironic.api.cert_file:
        refuse("ironic_cert_file", "name the certificate that ironic_key_file belongs to")
    try:
        if settings.ironic.is_read or settings.ironic.api.auth != "none":
            _access(settings)
    except ValueError as problem:
        guilty = "ironic_api_url"
        if settings.ironic.api.auth == "basic" and not settings.ironic.api.user:
            guilty = "ironic_user"
        if settings.ironic.api.auth == "keystone" and not settings.ironic.api.auth_url:
            guilty = "ironic_auth_url"
        refuse(guilty, str(problem))


def _check_selection(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    named = {
        "ironic_cells": settings.ironic.nodes.cells.values(),
        "ironic_agents": settings.ironic.nodes.agents,
    }
    for name, cells in {**named, "ironic_cell": filter(None, [settings.ironic.nodes.cell])}.items():
        for cell in cells:
            if cell not in settings.cell_names:
                refuse(name, f"there is no cell {cell!r}; there are: {', '.join(settings.cell_names)}")
    for name, keys in (
        ("ironic_zone_by", {"zone_by": settings.ironic.nodes.zone_by}),
        ("ironic_aggregates_by", {"aggregates_by": settings.ironic.nodes.aggregates_by}),
        ("ironic_cell_by", {"cell_by": settings.ironic.nodes.cell_by, "cells": settings.ironic.nodes.cells}),
    ):
        try:
            NodeSelection(cell="any", **keys)
        except ValueError as problem:
            refuse(name, str(problem))
    if settings.ironic.news.amqp_url and not settings.ironic.is_read and selection(settings).only_reads_place:
        refuse("ironic_api_url", "no notification tells a node's shard: name the API that does")


# The way to it


def access(settings: Settings) -> Access:
    """How its API is reached; the certificates it takes can be read."""
    found = _access(settings)
    for name in ("ironic_ca_file", "ironic_cert_file"):
        if path := by_name(settings)[name]:
            try:
                found.trust()
            except OSError as problem:
                why = problem.strerror or str(problem)
                raise BadSetting(f"{name} = {path!r}: {why}") from None
    return found


def _access(settings: Settings) -> Access:
    return Access(
        url=settings.ironic.api.url,
        auth=settings.ironic.api.auth,  # type: ignore[arg-type]  # it was checked
        user=settings.ironic.api.user,
        password=settings.ironic.api.password,
        ca_file=settings.ironic.api.ca_file,
        cert_file=settings.ironic.api.cert_file,
        key_file=settings.ironic.api.key_file,
        insecure=settings.ironic.api.insecure,
        auth_url=settings.ironic.api.auth_url,
        user_domain=settings.ironic.api.user_domain,
        project=settings.ironic.api.project,
        project_domain=settings.ironic.api.project_domain,
        system_scope=settings.ironic.api.system_scope,
        application_credential_id=settings.ironic.api.application_credential_id,
        application_credential_secret=settings.ironic.api.application_credential_secret,
        region=settings.ironic.api.region,
        interface=settings.ironic.api.interface,
    )


def selection(settings: Settings) -> NodeSelection:
    return NodeSelection(
        conductor_groups=settings.ironic.nodes.conductor_groups,
        shards=settings.ironic.nodes.shards,
        owners=settings.ironic.nodes.owners,
        resource_classes=settings.ironic.nodes.resource_classes,
        cell_by=settings.ironic.nodes.cell_by,
        cells=settings.ironic.nodes.cells,
        cell=settings.metal_cell,
        agents=settings.ironic.nodes.agents,
        zone_by=settings.ironic.nodes.zone_by,
        zone=settings.ironic.nodes.zone,
        aggregates_by=settings.ironic.nodes.aggregates_by,
    )


def followed(settings: Settings, clock: Clock) -> FollowedIronic:
    """What is heard and read of it, and what becomes of that."""
    heard = settings.ironic.news.amqp_url
    return FollowedIronic(
        selection=selection(settings),
        notifications=_notifications(settings, settings.ironic.news.queue, clock) if heard else None,
        api=IronicApi(access(settings), clock) if settings.ironic.is_read else None,
        skip_reserve_in_use=settings.ironic.sweeps.skip_reserve_in_use,
        reads_at_once=settings.ironic.sweeps.reads_at_once,
        sweep_seconds=settings.ironic.sweeps.sweep_seconds,
        deaf_sweep_seconds=settings.ironic.sweeps.deaf_sweep_seconds,
        full_every=settings.ironic.sweeps.full_every,
        pages_per_second=settings.ironic.sweeps.pages_per_second,
        share_gone=settings.ironic.sweeps.share_gone,
    )


def _notifications(
    settings: Settings, queue: str, clock: Clock, kept_seconds: float | None = None
) -> Notifications:
    return Notifications(
        settings.ironic.news.amqp_url,
        exchange=settings.ironic.news.exchange,
        topics=settings.ironic.news.topics,
        queue=queue,
        quorum=settings.bus.queue_type == "quorum" and kept_seconds is None,
        kept_seconds=kept_seconds,
        clock=clock,
    )


# Its workers


def sync(settings: Settings, bus: Bus) -> Worker:
    """The worker that follows it; where there is none, the one that hears of nodes by tools."""
    if not (settings.ironic.news.amqp_url or settings.ironic.is_read):
        return ironic_sync(skip_reserve_in_use=settings.ironic.sweeps.skip_reserve_in_use)
    ironic = followed(settings, bus.clock)
    return ironic_sync(ironic, bus.publish, bus.asker(topics.PROVIDERS), clock=bus.clock)


def agent_of(cell: str) -> str:
    """Berth's own agent for the nodes of a cell."""
    return AGENT.format(cell=cell)


def metal(settings: Settings, cell: str, clock: Clock) -> Worker:
    """The agent that builds on the nodes of a cell: it looks at one when it hears of it, or by itself."""
    agent, news = agent_of(cell), None
    if settings.ironic.is_heard:  # every process hears everything, on a queue that goes when it stays away
        queue = f"{settings.ironic.news.queue}.{agent}.{clock.uuid()[:8]}"
        news = news_of(_notifications(settings, queue, clock, _NEWS_KEPT))
    api = IronicApi(access(settings), clock)
    return metal_agent(
        agent,
        cell,
        api,
        news=news,
        period=settings.compute.heartbeat,
        patience=settings.ironic.builds.build_patience,
        maintenance_patience=settings.ironic.builds.maintenance_patience,
        clock=clock,
    )
