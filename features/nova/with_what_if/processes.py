"""Makes the worker of shadow mode; imported only if it runs."""

from berth.kit import BadSetting, ProcessPart, Settings
from bus.delivery.runner import Bus
from bus.rabbit.foreign.listener import ForeignListener
from bus.sql.database import Database
from bus.worker import Worker
from features.nova.conf import nova_options
from features.nova.processes import bridge_options, databases
from features.nova.settings import NovaSettings
from features.nova.with_what_if.shadow import ShadowedNova, nova_shadow

# A shadow that is stopped permanently must not fill Nova's RabbitMQ: then its queue is deleted.
SHADOW_QUEUE_SECONDS = 86400.0
SHADOW_QUEUE_MESSAGES = 20_000  # about 150 MB


def make(process: str, settings: Settings, bus: Bus, store: Database | None) -> Worker:
    """Return the worker that compares the hosts that Nova's own scheduler chose with berth's choices."""
    assert store is not None
    nova, conf = settings.of(NovaSettings), nova_options(settings)
    if not nova.notification_amqp_url:
        raise BadSetting(
            "nova_notification_amqp_url is not set: it names the RabbitMQ of Nova's notifications"
        )
    notifications = ForeignListener(
        nova.notification_amqp_url,
        exchange=conf.exchange,
        keys=[f"{topic}.*" for topic in conf.notification_topics],
        queue=f"{settings.bus.exchange}.nova_shadow",  # separate: other consumers miss no message
        name="berth nova-shadow",
        made_by="Nova makes it when it starts; notifications need driver = messagingv2 in"
        " [oslo_messaging_notifications] and notification_format = versioned or both in [notifications]",
        kept_seconds=SHADOW_QUEUE_SECONDS,
        most_messages=SHADOW_QUEUE_MESSAGES,
        clock=bus.clock,
    )
    followed = ShadowedNova(
        notifications=notifications,
        databases=databases(settings, bus.clock),
        options=bridge_options(conf),
        topics=conf.notification_topics,
    )
    return nova_shadow(followed, store, bus, bus.clock)


PART = ProcessPart(make)
