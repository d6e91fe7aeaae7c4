"""Filters that read the metadata of a host's aggregates. The metadata of several aggregates is combined."""

from collections.abc import Callable, Iterator, Mapping

from bus.aggregates import Aggregate
from scheduler_worker.core.attributes import meets
from scheduler_worker.core.rule import Alternative, Bools, HostFacts, Number, Rule, View

TENANT = "filter_tenant_id"  # and whatever begins so: one key holds only so many
_SCOPE = "aggregate_instance_extra_specs:"
_IMAGES = ("hw_", "img_", "os_")  # how properties of images begin
_OLDER = frozenset(
    ("architecture", "hypervisor_type", "hypervisor_version_requires", "vm_mode", "auto_disk_config")
)


def aggregate_multi_tenancy_isolation() -> Rule:
    """Where its aggregates name projects (`filter_tenant_id*`), the request's is among them."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if not host.aggregates or not any(map(_names_tenants, host.aggregates)):
            return None
        project = alternative.request.project
        if any(project in _tenants(aggregate) for aggregate in host.aggregates):
            return None
        return f"its aggregates are kept for projects other than {project}"

    def admits(view: View, alternative: Alternative) -> Bools:
        project = alternative.request.project
        kept = view.within(_names_tenants)
        ours: Bools = (kept == 0) | (view.within(lambda one: project in _tenants(one)) == 1)
        return ours

    return Rule(
        "aggregate_multi_tenancy_isolation", refuses, code="tenant", reads=("project",), admits=admits
    )


def aggregate_type_affinity() -> Rule:
    """Where its aggregates name flavors (`instance_type`), the request's is among them."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        named = [flavor for aggregate in host.aggregates for flavor in _listed(aggregate, "instance_type")]
        if not named or alternative.flavor.name in named:
            return None
        return f"its aggregates are for flavor {', '.join(named)}"

    def admits(view: View, alternative: Alternative) -> Bools:
        key = "instance_type"
        ours: Bools = (view.within(_has(key)) == 0) | (view.within(_lists(key, alternative.flavor.name)) == 1)
        return ours

    return Rule("aggregate_type_affinity", refuses, reads=("flavor.name",), admits=admits)


def aggregate_image_properties_isolation(
    *,
    aggregate_image_properties_isolation_namespace: str = "",
    aggregate_image_properties_isolation_separator: str = ".",
) -> Rule:
    """The host's aggregates name no values of an image property, or the image has one of them or lacks the
    property.
    """
    namespace = aggregate_image_properties_isolation_namespace
    prefix = namespace + aggregate_image_properties_isolation_separator if namespace else ""

    def properties(alternative: Alternative) -> Iterator[tuple[str, str]]:
        for name, value in alternative.image_properties.items():
            known = name.startswith(prefix) if prefix else name.startswith(_IMAGES) or name in _OLDER
            if known and value:
                yield name, value

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if not host.aggregates:
            return None
        for name, value in properties(alternative):
            named = [one for aggregate in host.aggregates for one in _listed(aggregate, name)]
            if named and value not in named:
                return f"its aggregates are for images with {name} {', '.join(named)}, not {value}"
        return None

    def admits(view: View, alternative: Alternative) -> Bools:
        passes: Number = view.within(lambda one: False) == 0
        for name, value in properties(alternative):
            passes = passes & ((view.within(_has(name)) == 0) | (view.within(_lists(name, value)) == 1))
        all_of_them: Bools = passes
        return all_of_them

    return Rule(
        "aggregate_image_properties_isolation",
        refuses,
        reads=("image",),
        admits=admits,
        concerns=lambda alternative: any(properties(alternative)),
    )


def aggregate_instance_extra_specs() -> Rule:
    """The metadata of the host's aggregates satisfies every extra spec without a scope or with
    `aggregate_instance_extra_specs:`.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        for key, demand in _demands(alternative.flavor.extra_specs):
            said = [one for aggregate in host.aggregates for one in _listed(aggregate, key)]
            if not any(meets(value, demand) for value in said):
                there = f"they say {', '.join(said)}" if said else "they do not say it"
                return f"its aggregates are to have {key} {demand}; {there}"
        return None

    def admits(view: View, alternative: Alternative) -> Bools:
        passes: Number = view.within(lambda one: False) == 0
        for key, demand in _demands(alternative.flavor.extra_specs):
            passes = passes & (view.within(_meets(key, demand)) == 1)
        all_of_them: Bools = passes
        return all_of_them

    return Rule(
        "aggregate_instance_extra_specs",
        refuses,
        reads=("flavor.extra_specs",),
        admits=admits,
        concerns=lambda alternative: any(_demands(alternative.flavor.extra_specs)),
    )


def unscoped(key: str) -> bool:
    """Return whether the key is for this filter; placement has some keys without a scope too."""
    return ":" not in key and key != "group_policy" and not key.startswith("same_subtree")


def _demands(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, demand in extra_specs.items():
        if key.startswith(_SCOPE):
            yield key.removeprefix(_SCOPE), demand
        elif unscoped(key):
            yield key, demand


def _listed(aggregate: Aggregate, key: str) -> list[str]:
    """Return the comma-separated values of the aggregate under this key."""
    text = aggregate.metadata.get(key)
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _has(key: str) -> Callable[[Aggregate], bool]:
    return lambda aggregate: bool(_listed(aggregate, key))


def _lists(key: str, value: str) -> Callable[[Aggregate], bool]:
    return lambda aggregate: value in _listed(aggregate, key)


def _meets(key: str, demand: str) -> Callable[[Aggregate], bool]:
    return lambda aggregate: any(meets(value, demand) for value in _listed(aggregate, key))


def _names_tenants(aggregate: Aggregate) -> bool:
    return any(key.startswith(TENANT) and value.strip() for key, value in aggregate.metadata.items())


def _tenants(aggregate: Aggregate) -> list[str]:
    return [one for key in aggregate.metadata if key.startswith(TENANT) for one in _listed(aggregate, key)]
