"""Filters for the metadata of aggregates."""

from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_

from bus.aggregates import Aggregate
from features.nova_filters.core.extra_specs import AGGREGATES, demands, meets
from scheduler_worker.core.extension import HostFacts, Number, Rule, View, array_rule
from scheduler_worker.extension import TENANT, Alternative, listed

_AGGREGATES = f"{AGGREGATES}:"
_IMAGES = ("hw_", "img_", "os_")  # prefixes of Nova's image properties
_OLDER = {"architecture", "hypervisor_type", "hypervisor_version_requires", "vm_mode", "auto_disk_config"}


def aggregate_type_affinity() -> Rule:
    """Accept hosts if their aggregates name the request's flavor (`instance_type`) or no flavor."""
    key = "instance_type"
    return array_rule(
        "aggregate_type_affinity",
        lambda view, alternative: _open_to(view, key, alternative.flavor.name),
        lambda host, alternative: f"its aggregates are for flavor {', '.join(_listed_by_any(host, key))}",
        reads=("flavor.name",),
    )


def aggregate_multi_tenancy_isolation() -> Rule:
    """Accept hosts if their aggregates name the request's project (`filter_tenant_id*`) or no project."""

    def admits(view: View, alternative: Alternative) -> Number:
        project = alternative.request.project
        reserved = view.within(_names_tenants)
        return (reserved == 0) | (view.within(lambda aggregate: project in _tenants(aggregate)) == 1)

    def why(host: HostFacts, alternative: Alternative) -> str:
        return f"its aggregates are for projects other than {alternative.request.project}"

    return array_rule("aggregate_multi_tenancy_isolation", admits, why, code="tenant", reads=("project",))


def aggregate_image_properties_isolation(
    *,
    aggregate_image_properties_isolation_namespace: str = "",
    aggregate_image_properties_isolation_separator: str = ".",
) -> Rule:
    """Reject hosts with aggregates that name an image property but not the value that the image has."""
    namespace = aggregate_image_properties_isolation_namespace
    prefix = namespace + aggregate_image_properties_isolation_separator if namespace else ""

    def properties(alternative: Alternative) -> Iterator[tuple[str, str]]:
        for name, value in alternative.image_properties.items():
            known = name.startswith(prefix) if prefix else name.startswith(_IMAGES) or name in _OLDER
            if known and value:
                yield name, value

    def admits(view: View, alternative: Alternative) -> Number:
        return reduce(and_, [_open_to(view, name, value) for name, value in properties(alternative)])

    def why(host: HostFacts, alternative: Alternative) -> str | None:
        for name, value in properties(alternative):
            named = _listed_by_any(host, name)
            if named and value not in named:
                return f"its aggregates are for images with {name} {', '.join(named)}, not {value}"
        return None

    def concerns(alternative: Alternative) -> bool:
        return any(properties(alternative))

    return array_rule("aggregate_image_properties_isolation", admits, why, concerns, reads=("image",))


def aggregate_instance_extra_specs() -> Rule:
    """Accept hosts if their aggregates' metadata satisfies the extra specs that have no scope or
    `aggregate_instance_extra_specs:`.
    """

    def admits(view: View, alternative: Alternative) -> Number:
        of_flavor = demands(alternative.flavor.extra_specs, _AGGREGATES)
        return reduce(and_, [view.within(_meets(key, demand)) == 1 for key, demand, _ in of_flavor])

    def why(host: HostFacts, alternative: Alternative) -> str | None:
        for key, demand, _ in demands(alternative.flavor.extra_specs, _AGGREGATES):
            values = _listed_by_any(host, key)
            if not any(meets(value, demand) for value in values):
                reported = f"they have {', '.join(values)}" if values else "they do not have it"
                return f"its aggregates are to have {key} {demand}; {reported}"
        return None

    def concerns(alternative: Alternative) -> bool:
        return any(demands(alternative.flavor.extra_specs, _AGGREGATES))

    return array_rule(
        "aggregate_instance_extra_specs",
        admits,
        why,
        concerns,
        reads=("flavor.extra_specs",),
        reads_unscoped=True,
    )


def _listed_by_any(host: HostFacts, key: str) -> list[str]:
    return [value for aggregate in host.aggregates for value in listed(aggregate, key)]


def _open_to(view: View, key: str, value: str) -> Number:
    named = view.within(lambda aggregate: bool(listed(aggregate, key)))
    return (named == 0) | (view.within(lambda aggregate: value in listed(aggregate, key)) == 1)


def _meets(key: str, demand: str) -> Callable[[Aggregate], bool]:
    return lambda aggregate: any(meets(value, demand) for value in listed(aggregate, key))


def _names_tenants(aggregate: Aggregate) -> bool:
    return any(key.startswith(TENANT) and value.strip() for key, value in aggregate.metadata.items())


def _tenants(aggregate: Aggregate) -> list[str]:
    return [id_ for key in aggregate.metadata if key.startswith(TENANT) for id_ in listed(aggregate, key)]
