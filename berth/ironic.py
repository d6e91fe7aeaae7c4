"""Ironic as the settings have it. Imported only where there is one: what speaks HTTP takes long to load."""

from collections.abc import Callable

from berth.settings import BadSetting, Settings
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
    if settings.ironic_amqp_url and not settings.ironic_amqp_url.startswith(("amqp://", "amqps://")):
        refuse("ironic_amqp_url", "must begin with amqp:// or amqps://")
    for name in ("ironic_exchange", "ironic_queue", "ironic_topics"):
        if not getattr(settings, name):
            refuse(name, "must not be empty")
    if settings.ironic_pages_per_second <= 0:
        refuse("ironic_pages_per_second", "must be more than 0")
    _check_access(settings, refuse)
    _check_selection(settings, refuse)


def _check_access(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    if settings.ironic_auth not in ("none", "basic", "keystone"):
        refuse("ironic_auth", "is none, basic or keystone")
    if settings.ironic_api_url and not settings.ironic_api_url.startswith(("http://", "https://")):
        refuse("ironic_api_url", "must begin with http:// or https://")
    if settings.ironic_key_file and not settings.ironic_cert_file:
        refuse("ironic_cert_file", "name the certificate that ironic_key_file belongs to")
    try:
        if settings.reads_ironic or settings.ironic_auth != "none":
            _access(settings)
    except ValueError as problem:
        guilty = "ironic_api_url"
        if settings.ironic_auth == "basic" and not settings.ironic_user:
            guilty = "ironic_user"
        if settings.ironic_auth == "keystone" and not settings.ironic_auth_url:
            guilty = "ironic_auth_url"
        refuse(guilty, str(problem))


def _check_selection(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    named = {"ironic_cells": settings.ironic_cells.values(), "ironic_agents": settings.ironic_agents}
    for name, cells in {**named, "ironic_cell": filter(None, [settings.ironic_cell])}.items():
        for cell in cells:
            if cell not in settings.cells:
                refuse(name, f"there is no cell {cell!r}; there are: {', '.join(settings.cells)}")
    for name, keys in (
        ("ironic_zone_by", {"zone_by": settings.ironic_zone_by}),
        ("ironic_aggregates_by", {"aggregates_by": settings.ironic_aggregates_by}),
        ("ironic_cell_by", {"cell_by": settings.ironic_cell_by, "cells": settings.ironic_cells}),
    ):
        try:
            NodeSelection(cell="any", **keys)
        except ValueError as problem:
            refuse(name, str(problem))
    if settings.ironic_amqp_url and not settings.reads_ironic and selection(settings).only_reads_place:
        refuse("ironic_api_url", "no notification tells a node's shard: name the API that does")


# The way to it


def access(settings: Settings) -> Access:
    """How its API is reached; the certificates it takes can be read."""
    found = _access(settings)
    for name in ("ironic_ca_file", "ironic_cert_file"):
        if getattr(settings, name):
            try:
                found.trust()
            except OSError as problem:
                why = problem.strerror or str(problem)
                raise BadSetting(f"{name} = {getattr(settings, name)!r}: {why}") from None
    return found


def _access(settings: Settings) -> Access:
    return Access(
        url=settings.ironic_api_url,
        auth=settings.ironic_auth,  # type: ignore[arg-type]  # it was checked
        user=settings.ironic_user,
        password=settings.ironic_password,
        ca_file=settings.ironic_ca_file,
        cert_file=settings.ironic_cert_file,
        key_file=settings.ironic_key_file,
        insecure=settings.ironic_insecure,
        auth_url=settings.ironic_auth_url,
        user_domain=settings.ironic_user_domain,
        project=settings.ironic_project,
        project_domain=settings.ironic_project_domain,
        system_scope=settings.ironic_system_scope,
        application_credential_id=settings.ironic_application_credential_id,
        application_credential_secret=settings.ironic_application_credential_secret,
        region=settings.ironic_region,
        interface=settings.ironic_interface,
    )


def selection(settings: Settings) -> NodeSelection:
    return NodeSelection(
        conductor_groups=settings.ironic_conductor_groups,
        shards=settings.ironic_shards,
        owners=settings.ironic_owners,
        resource_classes=settings.ironic_resource_classes,
        cell_by=settings.ironic_cell_by,
        cells=settings.ironic_cells,
        cell=settings.metal_cell,
        agents=settings.ironic_agents,
        zone_by=settings.ironic_zone_by,
        zone=settings.ironic_zone,
        aggregates_by=settings.ironic_aggregates_by,
    )


def followed(settings: Settings, clock: Clock) -> FollowedIronic:
    """What is heard and read of it, and what becomes of that."""
    heard = settings.ironic_amqp_url
    return FollowedIronic(
        selection=selection(settings),
        notifications=_notifications(settings, settings.ironic_queue, clock) if heard else None,
        api=IronicApi(access(settings), clock) if settings.reads_ironic else None,
        skip_reserve_in_use=settings.ironic_skip_reserve_in_use,
        reads_at_once=settings.ironic_reads_at_once,
        sweep_seconds=settings.ironic_sweep_seconds,
        full_every=settings.ironic_full_every,
        pages_per_second=settings.ironic_pages_per_second,
        share_gone=settings.ironic_share_gone,
    )


def _notifications(
    settings: Settings, queue: str, clock: Clock, kept_seconds: float | None = None
) -> Notifications:
    return Notifications(
        settings.ironic_amqp_url,
        exchange=settings.ironic_exchange,
        topics=settings.ironic_topics,
        queue=queue,
        quorum=settings.queue_type == "quorum" and kept_seconds is None,
        kept_seconds=kept_seconds,
        clock=clock,
    )


# Its workers


def sync(settings: Settings, bus: Bus) -> Worker:
    """The worker that follows it; where there is none, the one that hears of nodes by tools."""
    if not (settings.ironic_amqp_url or settings.reads_ironic):
        return ironic_sync(skip_reserve_in_use=settings.ironic_skip_reserve_in_use)
    ironic = followed(settings, bus.clock)
    return ironic_sync(ironic, bus.publish, bus.asker(topics.PROVIDERS), clock=bus.clock)


def agent_of(cell: str) -> str:
    """Berth's own agent for the nodes of a cell."""
    return AGENT.format(cell=cell)


def metal(settings: Settings, cell: str, clock: Clock) -> Worker:
    """The agent that builds on the nodes of a cell: it looks at one when it hears of it, or by itself."""
    agent, news = agent_of(cell), None
    if settings.ironic_amqp_url:  # every process hears everything, on a queue that goes when it stays away
        queue = f"{settings.ironic_queue}.{agent}.{clock.uuid()[:8]}"
        news = news_of(_notifications(settings, queue, clock, _NEWS_KEPT))
    api = IronicApi(access(settings), clock)
    return metal_agent(agent, cell, api, news=news, period=settings.heartbeat, clock=clock)
