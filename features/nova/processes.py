"""Makes the bridge and the readers of Nova's databases; imported only if Nova is in use."""

from collections.abc import Callable

from berth.kit import BadConf, BadSetting, ProcessPart, Settings, check_broker_url
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.rabbit.foreign.publisher import ForeignPublisher
from bus.sql.database import Database
from bus.worker import Worker
from features.nova.bridge import FollowedNova, bridge_parts, nova_bridge
from features.nova.conf import NovaConf, nova_conf, nova_options
from features.nova.core.scheduler_notifications import NotificationOptions
from features.nova.core.translation import BridgeOptions
from features.nova.databases import NovaDatabases, address_of
from features.nova.inspection import NovaInspection
from features.nova.notifying import SchedulerNotifications
from features.nova.oslo.server import RpcAddress
from features.nova.settings import NovaSettings


def make(process: str, settings: Settings, bus: Bus, store: Database | None) -> Worker:
    """Return the worker of the bridge."""
    return bridge(settings, bus)


def check(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    """Check the settings of Nova; call `refuse` with the name of each wrong setting, and the reason."""
    nova = settings.of(NovaSettings)
    if not nova.wait >= 0:
        refuse("nova_wait", "must be at least 0")
    for name, url in (
        ("nova_amqp_url", nova.amqp_url),
        ("nova_fallback_amqp_url", nova.fallback_amqp_url),
        ("nova_notification_amqp_url", nova.notification_amqp_url),
    ):
        if url:
            check_broker_url(url, name, refuse)
    if nova.amqp_url and nova.amqp_url == nova.fallback_amqp_url:
        refuse(
            "nova_fallback_amqp_url",
            "must differ from nova_amqp_url: a nova-scheduler there competes with berth",
        )
    for name, url in (
        ("nova_amqp_url", nova.amqp_url),
        ("nova_notification_amqp_url", nova.notification_amqp_url),
    ):
        if url and not nova.database_url:
            refuse("nova_database_url", f"is needed with {name}")
    try:
        nova_conf(settings.ironic.connection.nova_conf)
    except BadConf as problem:
        refuse("nova_conf", str(problem))
    for name, urls in (
        ("nova_database_url", [nova.database_url] if nova.database_url else []),
        ("nova_cell_database_urls", list(nova.cell_database_urls.values())),
    ):
        for url in urls:
            try:
                address_of(url)
            except ValueError as problem:
                refuse(name, str(problem))


def databases(settings: Settings, clock: Clock) -> NovaDatabases:
    """Return the object that reads Nova's databases; raise BadSetting if their URLs are missing or wrong."""
    nova = settings.of(NovaSettings)
    if not nova.database_url:
        raise BadSetting("nova_database_url is not set: it names Nova's API database")
    down_seconds = nova_options(settings).service_down_time
    try:
        return NovaDatabases(nova.database_url, nova.cell_database_urls, clock, down_seconds=down_seconds)
    except ValueError as problem:
        raise BadSetting(f"nova_database_url: {problem}") from None


def inspection(settings: Settings, clock: Clock) -> NovaInspection:
    """Return the object that reads Nova's databases for `berth openstack check`."""
    nova, down_seconds = settings.of(NovaSettings), nova_options(settings).service_down_time
    return NovaInspection(nova.database_url, nova.cell_database_urls, clock, down_seconds=down_seconds)


def scheduler_address(settings: Settings) -> RpcAddress:
    """Return the RabbitMQ URL, exchange and topic at which Nova calls its scheduler by RPC."""
    return _address(nova_options(settings), settings.of(NovaSettings).amqp_url)


def bridge(settings: Settings, bus: Bus) -> Worker:
    """Return the worker that answers Nova's scheduler RPC calls; raise BadSetting without nova_amqp_url."""
    nova = settings.of(NovaSettings)
    if not nova.amqp_url:
        raise BadSetting("nova_amqp_url is not set: it names the RabbitMQ on which Nova calls its scheduler")
    conf = nova_options(settings)
    return nova_bridge(
        FollowedNova(
            rpc=_address(conf, nova.amqp_url),
            databases=databases(settings, bus.clock),
            options=bridge_options(conf),
            wait=nova.wait,
            notifications=_notifications(nova, conf, bus.clock),
            fallback=_address(conf, nova.fallback_amqp_url) if nova.fallback_amqp_url else None,
        ),
        bus,
        bus.clock,
        bridge_parts(bus),
    )


def _notifications(nova: NovaSettings, conf: NovaConf, clock: Clock) -> SchedulerNotifications | None:
    if not conf.notification_format:
        return None
    publisher = ForeignPublisher(
        nova.notification_amqp_url or nova.amqp_url,
        exchange=conf.exchange,
        name="berth openstack",
        durable=conf.durable_queues or conf.quorum_queues,
        clock=clock,
    )
    options = NotificationOptions(conf.notification_format, conf.notification_topics, conf.unversioned_topics)
    return SchedulerNotifications(publisher, options, clock)


def bridge_options(conf: NovaConf) -> BridgeOptions:
    return BridgeOptions(
        alternates=conf.max_attempts - 1, default_zone=conf.default_zone, routed_networks=conf.routed_networks
    )


def _address(conf: NovaConf, url: str) -> RpcAddress:
    return RpcAddress(
        url=url,
        exchange=conf.exchange,
        topic="scheduler",
        durable=conf.durable_queues,
        quorum=conf.quorum_queues,
        durable_fanout=conf.durable_fanout,
    )


PART = ProcessPart(make, check)
