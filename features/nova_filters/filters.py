"""The filters and weighers of the feature: their positions, and their names in Nova."""

from collections.abc import Mapping
from typing import Any

from features.nova_filters import weighers
from features.nova_filters.aggregate_filters import (
    aggregate_image_properties_isolation,
    aggregate_instance_extra_specs,
    aggregate_multi_tenancy_isolation,
    aggregate_type_affinity,
)
from features.nova_filters.host_filters import (
    all_hosts,
    compute_capabilities,
    json,
    metrics,
    num_instances,
    simple_cidr_affinity,
)
from features.nova_filters.image_filters import image_properties, isolated_hosts
from scheduler_worker.core.extension import MoreRules, RulesPart


def _are_required(metrics: Mapping[str, Any]) -> bool:
    return bool(metrics.get("weight_setting")) and metrics.get("required", True)


PART = RulesPart(
    filters=(
        MoreRules(
            made=(compute_capabilities, image_properties),
            before="same_host",
            called={
                "ComputeCapabilitiesFilter": ("compute_capabilities",),
                "ImagePropertiesFilter": ("image_properties",),
            },
        ),
        MoreRules(
            made=(simple_cidr_affinity, aggregate_multi_tenancy_isolation),
            called={
                "SimpleCIDRAffinityFilter": ("simple_cidr_affinity",),
                "AggregateMultiTenancyIsolation": ("aggregate_multi_tenancy_isolation",),
            },
            hints={"build_near_host_ip": "simple_cidr_affinity"},
        ),
        MoreRules(
            made=(all_hosts,), before="few_failures", enabled=False, called={"AllHostsFilter": ("all_hosts",)}
        ),
        MoreRules(
            made=(
                num_instances,
                isolated_hosts,
                metrics,
                json,
                aggregate_image_properties_isolation,
                aggregate_instance_extra_specs,
                aggregate_type_affinity,
            ),
            enabled=False,
            called={
                "NumInstancesFilter": ("num_instances",),
                "AggregateNumInstancesFilter": ("num_instances",),
                "IsolatedHostsFilter": ("isolated_hosts",),
                "MetricsFilter": ("metrics",),
                "JsonFilter": ("json",),
                "AggregateImagePropertiesIsolation": ("aggregate_image_properties_isolation",),
                "AggregateInstanceExtraSpecsFilter": ("aggregate_instance_extra_specs",),
                "AggregateTypeAffinityFilter": ("aggregate_type_affinity",),
            },
            hints={"query": "json"},
            enabled_by={"metrics": _are_required},
        ),
    ),
    weighers=(
        MoreRules(
            made=(weighers.hypervisor_version,),
            before="build_failure",
            called={"HypervisorVersionWeigher": ("hypervisor_version",)},
        ),
        MoreRules(
            made=(weighers.num_instances, weighers.image_properties, weighers.metrics),
            before="preferred_traits",
            called={
                "NumInstancesWeigher": ("num_instances",),
                "ImagePropertiesWeigher": ("image_properties",),
                "MetricsWeigher": ("metrics",),
            },
        ),
    ),
)
