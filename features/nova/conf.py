"""Reads the options of Nova that berth follows from Nova's configuration file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from berth.kit import OsloConf, Settings, read_conf

_FORMATS = ("versioned", "unversioned", "both")


@dataclass(frozen=True)
class NovaConf:
    """The options of Nova that the bridge and shadow mode follow."""

    exchange: str
    durable_queues: bool
    quorum_queues: bool
    durable_fanout: bool  # of the exchange for casts to every scheduler
    service_down_time: int  # seconds without a report after which a compute is down
    max_attempts: int  # hosts for a boot, the alternates included
    long_rpc_timeout: int  # seconds that Nova waits for its scheduler
    default_zone: str
    routed_networks: bool
    notification_format: str  # versioned, unversioned or both; empty: Nova publishes no notifications
    notification_topics: tuple[str, ...]
    unversioned_topics: tuple[str, ...]


def nova_conf(path: str) -> NovaConf:
    """Return Nova's options in its configuration file, or their defaults if `path` is empty; raise BadConf if
    the file cannot be used.
    """
    conf = OsloConf(path)
    drivers = {driver for driver in conf.every("oslo_messaging_notifications", "driver") if driver != "noop"}
    form = conf.one_of("notifications", "notification_format", _FORMATS, "unversioned")
    return NovaConf(
        exchange=conf.text("DEFAULT", "control_exchange", "nova"),
        durable_queues=conf.flag("oslo_messaging_rabbit", "amqp_durable_queues"),
        quorum_queues=conf.flag("oslo_messaging_rabbit", "rabbit_quorum_queue"),
        durable_fanout=conf.flag("oslo_messaging_rabbit", "rabbit_transient_quorum_queue"),
        service_down_time=conf.number("DEFAULT", "service_down_time", 60),
        max_attempts=conf.number("scheduler", "max_attempts", 3),
        long_rpc_timeout=conf.number("DEFAULT", "long_rpc_timeout", 1800),
        default_zone=conf.text("DEFAULT", "default_availability_zone", "nova"),
        routed_networks=conf.flag("scheduler", "query_placement_for_routed_network_aggregates"),
        notification_format=form if drivers else "",
        notification_topics=conf.words(
            "notifications", "versioned_notifications_topics", "versioned_notifications"
        ),
        unversioned_topics=conf.words("oslo_messaging_notifications", "topics", "notifications"),
    )


# Options of nova-scheduler with the multiplier of a weigher → name of berth's weigher, and Nova's default.
_MULTIPLIERS = {
    "ram_weight_multiplier": ("ram", 1.0),
    "cpu_weight_multiplier": ("cpu", 1.0),
    "disk_weight_multiplier": ("disk", 1.0),
    "hypervisor_version_weight_multiplier": ("hypervisor_version", 1.0),
    "num_instances_weight_multiplier": ("num_instances", 0.0),
    "io_ops_weight_multiplier": ("io_ops", -1.0),
    "image_props_weight_multiplier": ("image_properties", 0.0),
    "pci_weight_multiplier": ("pci", 1.0),
    "soft_affinity_weight_multiplier": ("soft_affinity", 1.0),
    "soft_anti_affinity_weight_multiplier": ("soft_anti_affinity", 1.0),
    "build_failure_weight_multiplier": ("build_failure", 1_000_000.0),
}
_FILTERS = (
    "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
    "ServerGroupAffinityFilter"
)


@dataclass(frozen=True, kw_only=True)
class NovaSchedulerConf:
    """The options of nova-scheduler that berth does not follow: `berth openstack check` compares them with
    berth's settings.
    """

    filters: tuple[str, ...] = tuple(_FILTERS.split(","))
    weighers: tuple[str, ...] = ()  # classes; empty: all
    # option → berth's weigher, and the value, if it differs from Nova's default
    multipliers: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    subset: int = 1  # host_subset_size
    tenant_aggregates: bool = False  # limit_tenants_to_placement_aggregate
    tenant_aggregates_required: bool = False  # placement_aggregate_required_for_tenants
    isolate_aggregates: bool = False  # enable_isolated_aggregate_filtering
    image_types: bool = False  # query_placement_for_image_type_support
    image_metadata: bool = False  # image_metadata_prefilter
    discovery: int = -1  # seconds between two searches for new hosts; 0: 60; negative: never


def nova_scheduler_conf(path: str) -> NovaSchedulerConf:
    """Return the options of nova-scheduler in Nova's configuration file; raise BadConf if the file cannot be
    used.
    """
    conf, group = OsloConf(path), "filter_scheduler"
    values = {option: conf.real(group, option, default) for option, (_, default) in _MULTIPLIERS.items()}
    multipliers = {
        option: (weigher, values[option])
        for option, (weigher, default) in _MULTIPLIERS.items()
        if values[option] != default
    }
    if (metrics := conf.real("metrics", "weight_multiplier", 1.0)) != 1.0:
        multipliers["[metrics] weight_multiplier"] = "metrics", metrics
    classes = _class_names(conf.text(group, "weight_classes", "all_weighers"))
    return NovaSchedulerConf(
        filters=_class_names(conf.text(group, "enabled_filters", _FILTERS)),
        weighers=() if "all_weighers" in classes else classes,
        multipliers=multipliers,
        subset=conf.number(group, "host_subset_size", 1),
        tenant_aggregates=conf.flag("scheduler", "limit_tenants_to_placement_aggregate"),
        tenant_aggregates_required=conf.flag("scheduler", "placement_aggregate_required_for_tenants"),
        isolate_aggregates=conf.flag("scheduler", "enable_isolated_aggregate_filtering"),
        image_types=conf.flag("scheduler", "query_placement_for_image_type_support"),
        image_metadata=conf.flag("scheduler", "image_metadata_prefilter"),
        discovery=int(conf.real("scheduler", "discover_hosts_in_cells_interval", -1)),
    )


def _class_names(text: str) -> tuple[str, ...]:
    """Return the names of the classes in a list, without their modules."""
    return tuple(word.strip().rpartition(".")[2] for word in text.split(",") if word.strip())


def nova_options(settings: Settings) -> NovaConf:
    """Return Nova's options in the file that the setting nova_conf names; raise BadSetting if it is wrong."""
    return read_conf("nova_conf", settings.ironic.connection.nova_conf, nova_conf)


def nova_scheduler_options(settings: Settings) -> NovaSchedulerConf:
    """Return the options of nova-scheduler in the file that nova_conf names; raise BadSetting if it is
    wrong.
    """
    return read_conf("nova_conf", settings.ironic.connection.nova_conf, nova_scheduler_conf)
