"""Declares the feature nova."""

from bus.feature import Feature, FeatureProcess, PageEntry
from features.nova.settings import NovaSettings


def _serves(nova: NovaSettings) -> bool:
    return bool(nova.amqp_url)


def _observes(nova: NovaSettings) -> bool:
    return bool(nova.notification_amqp_url)


FEATURE = Feature(
    name="nova",
    says="schedules for a real Nova in place of nova-scheduler, or compares its decisions with berth's",
    adds=(
        "messages",
        "scheduler",
        "processes",
        "bench.suite",
        "with_groups.nova_bridge",
        "with_what_if.messages",
        "with_what_if.processes",
        "with_what_if.pages",
    ),
    defines=("nova_bridge",),
    settings=NovaSettings,
    processes=(
        FeatureProcess(name="nova", runs_with=_serves),
        FeatureProcess(
            name="nova-shadow", runs_with=_observes, has_database=True, module="with_what_if.processes"
        ),
    ),
    commands={"openstack check": "commands", "openstack report": "with_what_if.commands"},
    pages={"/nova": PageEntry("Nova", "Policy")},
    meters=(("features.nova.with_what_if.shadow", "nova-shadow"),),
    examples=(
        ("nova_amqp_url", "amqp://127.0.0.1/nova"),
        ("nova_notification_amqp_url", "amqp://127.0.0.1/nova"),
        ("nova_database_url", "postgresql://127.0.0.1/nova_api"),
    ),
)
