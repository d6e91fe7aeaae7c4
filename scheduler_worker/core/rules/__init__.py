"""The built-in filters. A function with the name of the filter makes it; the arguments are the filter's
options.
"""

from collections.abc import Callable, Mapping

from scheduler_worker.core.rule import Rule
from scheduler_worker.core.rules import demands, state

RULES: Mapping[str, Callable[..., Rule]] = {
    made.__name__: made
    for made in (
        state.up,
        state.enabled,
        state.zone,
        state.io_ops,
        demands.compute_capabilities,
        demands.image_properties,
        state.same_host,
        state.different_host,
        demands.aggregate_multi_tenancy_isolation,
        state.simple_cidr_affinity,
        state.all_hosts,
        state.few_failures,
        state.num_instances,
        demands.isolated_hosts,
        state.metrics,
        demands.json,
        demands.aggregate_image_properties_isolation,
        demands.aggregate_instance_extra_specs,
        demands.aggregate_type_affinity,
    )
}

# Filters enabled by default: Nova's defaults, and filters without effect unless a request or aggregate uses
# them.
DEFAULT_RULES = """
    up enabled zone io_ops compute_capabilities image_properties same_host different_host simple_cidr_affinity
    aggregate_multi_tenancy_isolation
""".split()  # noqa: SIM905 - shorter than a list

# Other accepted names (of Nova, or former ones) → filters. A module path before a class name is ignored.
RULES_CALLED: Mapping[str, tuple[str, ...]] = {
    "ComputeFilter": ("up", "enabled"),
    "AvailabilityZoneFilter": ("zone",),
    "IoOpsFilter": ("io_ops",),
    "AggregateIoOpsFilter": ("io_ops",),
    "NumInstancesFilter": ("num_instances",),
    "AggregateNumInstancesFilter": ("num_instances",),
    "ComputeCapabilitiesFilter": ("compute_capabilities",),
    "ImagePropertiesFilter": ("image_properties",),
    "SameHostFilter": ("same_host",),
    "DifferentHostFilter": ("different_host",),
    "SimpleCIDRAffinityFilter": ("simple_cidr_affinity",),
    "AllHostsFilter": ("all_hosts",),
    "IsolatedHostsFilter": ("isolated_hosts",),
    "MetricsFilter": ("metrics",),
    "JsonFilter": ("json",),
    "AggregateImagePropertiesIsolation": ("aggregate_image_properties_isolation",),
    "AggregateInstanceExtraSpecsFilter": ("aggregate_instance_extra_specs",),
    "AggregateMultiTenancyIsolation": ("aggregate_multi_tenancy_isolation",),
    "AggregateTypeAffinityFilter": ("aggregate_type_affinity",),
    "host_is_up": ("up",),
    "host_is_enabled": ("enabled",),
    "same_zone": ("zone",),
    "few_builds_in_flight": ("io_ops",),
}

# Filters of Nova that berth does not need → why.
RULES_OF_PLACEMENT: Mapping[str, str] = {
    "NUMATopologyFilter": "NUMA cells are providers: `hw:numa_nodes` asks placement for a group from each",
    "PciPassthroughFilter": "devices are providers: each device asked for is a group of placement's question",
    "CoreFilter": "placement offers only hosts with enough VCPU",
    "RamFilter": "placement offers only hosts with enough MEMORY_MB",
    "DiskFilter": "placement offers only hosts with enough DISK_GB",
    "RetryFilter": "a host that refused a build is no alternate of it again",
}
