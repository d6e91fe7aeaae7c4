"""Filters that read the metadata of a host's aggregates. The metadata of several aggregates is combined."""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import and_

from bus.aggregates import Aggregate
from scheduler_worker.core.attributes import meets
from scheduler_worker.core.rule import Alternative, HostFacts, Number, Rule, View, array_rule

TENANT = "filter_tenant_id"  # and whatever begins so: one key holds only so many
_SCOPE = "aggregate_instance_extra_specs:"
_IMAGES = ("hw_", "img_", "os_")  # how properties of images begin
_OLDER = frozenset(
    ("architecture", "hypervisor_type", "hypervisor_version_requires", "vm_mode", "auto_disk_config")
)


def aggregate_multi_tenancy_isolation() -> Rule:
    """If the host's aggregates name projects (`filter_tenant_id*`), the request's project is among them."""

    def admits(view: View, alternative: Alternative) -> Number:
        project = alternative.request.project
        reserved = view.within(_names_tenants)
        return (reserved == 0) | (view.within(lambda aggregate: project in _tenants(aggregate)) == 1)

    def why(host: HostFacts, alternative: Alternative) -> str:
        return f"its aggregates are kept for projects other than {alternative.request.project}"

    return array_rule("aggregate_multi_tenancy_isolation", admits, why, code="tenant", reads=("project",))


def aggregate_type_affinity() -> Rule:
    """If the host's aggregates name flavors (`instance_type`), the request's flavor is among them."""
    key = "instance_type"
    return array_rule(
        "aggregate_type_affinity",
        lambda view, alternative: _open_to(view, key, alternative.flavor.name),
        lambda host, alternative: f"its aggregates are for flavor {', '.join(_listed_by_any(host, key))}",
        reads=("flavor.name",),
    )


def aggregate_image_properties_isolation(
    *,
    aggregate_image_properties_isolation_namespace: str = "",
    aggregate_image_properties_isolation_separator: str = ".",
) -> Rule:
    """The host's aggregates name no values of an image property, or its value, or the image lacks it."""
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

    return array_rule(
        "aggregate_image_properties_isolation",
        admits,
        why,
        lambda alternative: any(properties(alternative)),
        reads=("image",),
    )


def aggregate_instance_extra_specs() -> Rule:
    """The metadata of the host's aggregates satisfies every extra spec without a scope or with
    `aggregate_instance_extra_specs:`.
    """

    def admits(view: View, alternative: Alternative) -> Number:
        of_flavor = demands(alternative.flavor.extra_specs, _SCOPE)
        return reduce(and_, [view.within(_meets(key, demand)) == 1 for key, demand, _ in of_flavor])

    def why(host: HostFacts, alternative: Alternative) -> str | None:
        for key, demand, _ in demands(alternative.flavor.extra_specs, _SCOPE):
            values = _listed_by_any(host, key)
            if not any(meets(value, demand) for value in values):
                there = f"they say {', '.join(values)}" if values else "they do not say it"
                return f"its aggregates are to have {key} {demand}; {there}"
        return None

    return array_rule(
        "aggregate_instance_extra_specs",
        admits,
        why,
        lambda alternative: any(demands(alternative.flavor.extra_specs, _SCOPE)),
        reads=("flavor.extra_specs",),
    )


def demands(extra_specs: Mapping[str, str], scope: str) -> Iterator[tuple[str, str, bool]]:
    """Yield key, demand and whether it has the scope, of the extra specs with this scope or without any."""
    for key, demand in extra_specs.items():
        if key.startswith(scope):
            yield key.removeprefix(scope), demand, True
        elif ":" not in key and key != "group_policy" and not key.startswith("same_subtree"):
            yield key, demand, False


def _listed(aggregate: Aggregate, key: str) -> list[str]:
    text = aggregate.metadata.get(key)
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _listed_by_any(host: HostFacts, key: str) -> list[str]:
    return [value for aggregate in host.aggregates for value in _listed(aggregate, key)]


def _open_to(view: View, key: str, value: str) -> Number:
    named = view.within(lambda aggregate: bool(_listed(aggregate, key)))
    return (named == 0) | (view.within(lambda aggregate: value in _listed(aggregate, key)) == 1)


def _meets(key: str, demand: str) -> Callable[[Aggregate], bool]:
    return lambda aggregate: any(meets(value, demand) for value in _listed(aggregate, key))


def _names_tenants(aggregate: Aggregate) -> bool:
    return any(key.startswith(TENANT) and value.strip() for key, value in aggregate.metadata.items())


def _tenants(aggregate: Aggregate) -> list[str]:
    return [one for key in aggregate.metadata if key.startswith(TENANT) for one in _listed(aggregate, key)]
