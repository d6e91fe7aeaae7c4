"""The filters and weighers of the feature: their positions, and their names in Nova."""

from features.nova_filters import aggregate_filters, host_filters
from features.nova_filters.aggregate_filters import (
    aggregate_image_properties_isolation,
    aggregate_instance_extra_specs,
    aggregate_type_affinity,
)
from features.nova_filters.core.query import parsed
from features.nova_filters.host_filters import compute_capabilities, json
from features.nova_filters.image_filters import image_properties, isolated_hosts
from features.nova_filters.image_weigher import image_properties as image_properties_weigher
from scheduler_worker.extension import MoreRules

FILTERS = (
    MoreRules(
        made=(compute_capabilities, image_properties),
        before="same_host",
        called={
            "ComputeCapabilitiesFilter": ("compute_capabilities",),
            "ImagePropertiesFilter": ("image_properties",),
        },
        scopes=(host_filters.SCOPE,),
    ),
    MoreRules(
        made=(isolated_hosts,),
        before="metrics",
        enabled=False,
        called={"IsolatedHostsFilter": ("isolated_hosts",)},
    ),
    MoreRules(
        made=(
            json,
            aggregate_image_properties_isolation,
            aggregate_instance_extra_specs,
            aggregate_type_affinity,
        ),
        enabled=False,
        called={
            "JsonFilter": ("json",),
            "AggregateImagePropertiesIsolation": ("aggregate_image_properties_isolation",),
            "AggregateInstanceExtraSpecsFilter": ("aggregate_instance_extra_specs",),
            "AggregateTypeAffinityFilter": ("aggregate_type_affinity",),
        },
        hints={"query": "json"},
        checks={"query": parsed},
        scopes=(aggregate_filters.SCOPE,),
    ),
)
WEIGHERS = (
    MoreRules(
        made=(image_properties_weigher,),
        before="metrics",
        called={"ImagePropertiesWeigher": ("image_properties",)},
    ),
)
