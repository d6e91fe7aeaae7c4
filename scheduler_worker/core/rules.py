"""Filters for the reported state of a host, and for the other instances on it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from operator import and_

from bus.aggregates import Aggregate
from bus.host_health import DISABLED, FORCED_DOWN, why_disabled
from bus.reports import HostState
from bus.requests import Image
from scheduler_worker.core.rule import (
    OPERATORS,
    Alternative,
    HostFacts,
    Number,
    OneHost,
    Rule,
    UnreadableQuery,
    View,
    array_rule,
    attribute,
    capability,
    holds,
    meets,
    parsed,
)

# Section: filters for the reported state of a host, and for the other instances on it.


def same_host() -> Rule:
    """Accept hosts that run an instance named by the hint `same_host`."""
    return array_rule(
        "same_host",
        lambda view, alternative: view.among(alternative.same or ()) == 1,
        lambda host, alternative: "none of the instances of same_host is there",
        lambda alternative: alternative.same is not None,
        reads=("hints.same_host",),
    )


def different_host() -> Rule:
    """Accept hosts that run no instance named by the hint `different_host`."""
    return array_rule(
        "different_host",
        lambda view, alternative: view.among(alternative.different) == 0,
        lambda host, alternative: "an instance of different_host is there",
        lambda alternative: bool(alternative.different),
        reads=("hints.different_host",),
    )


def simple_cidr_affinity() -> Rule:
    """Accept hosts with an address in the network that the hints `build_near_host_ip` and `cidr` describe;
    reject hosts without a known address.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        hints = alternative.request.hints
        if not hints.build_near_host_ip:
            return None
        network = _network(hints.build_near_host_ip, hints.cidr)
        if network is None:
            return f"{hints.build_near_host_ip}{hints.cidr} is no network"
        address = host.state.ip if host.state is not None else ""
        if not address:
            return "it does not report its address"
        try:
            near = ip_address(address) in network
        except ValueError:
            near = False
        return None if near else f"its address {address} is not in {network}"

    return Rule(
        "simple_cidr_affinity",
        refuses,
        reads=("hints.build_near_host_ip", "hints.cidr"),
        concerns=lambda alternative: bool(alternative.request.hints.build_near_host_ip),
    )


@lru_cache(maxsize=256)
def _network(address: str, cidr: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(f"{address}/{cidr.removeprefix('/')}", strict=False)
    except ValueError:
        return None


_FORCED_DOWN = "forced down by an operator"


def all_hosts() -> Rule:
    """Accept every host."""
    return Rule("all_hosts", lambda host, alternative: None, concerns=lambda alternative: False)


def up() -> Rule:
    """Accept hosts if heartbeats of host and agent arrive, and hosts that have not reported so far."""
    return Rule(
        "up",
        lambda host, alternative: host.down or None,
        code="down",
        passes=True,
        admits=lambda view, alternative: view.fact("up") == 1,
    )


def enabled() -> Rule:
    """Accept hosts that neither their agents nor placement have disabled, and that are not forced down."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if FORCED_DOWN in host.traits:
            return _FORCED_DOWN
        if DISABLED in host.traits:
            return why_disabled(host.traits)
        state = host.state
        if state is None:
            return None
        if not state.enabled:
            return f"disabled: {state.why_disabled}" if state.why_disabled else "disabled"
        return _FORCED_DOWN if state.forced_down else None

    def admits(view: View, alternative: Alternative) -> Number:
        open_ = view.fact("enabled", 1.0) > view.fact("forced_down", 0.0)
        # without this trait in the search, placement has rejected disabled hosts already
        if DISABLED not in alternative.question.root_forbidden:
            open_ = open_ & (view.has(DISABLED) == 0)
        return open_ & (view.has(FORCED_DOWN) == 0)

    return Rule("enabled", refuses, code="disabled", admits=admits)


def zone() -> Rule:
    """Accept hosts in the requested zone, by their reports or by their aggregates (`availability_zone`)."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        asked = alternative.request.zone
        host_zone = host.zone or (host.state.zone if host.state is not None else "")
        if not asked or host_zone == asked:
            return None
        zones = [*([host_zone] if host_zone else ()), *host.metadata("availability_zone")]
        if asked in zones:
            return None
        return f"in zone {', '.join(map(repr, zones)) or repr('')}, not in {asked!r}"

    # If the search contains the zone, placement returns only its hosts, so this filter is skipped.
    return Rule(
        "zone",
        refuses,
        reads=("zone",),
        concerns=lambda alternative: bool(alternative.request.zone) and not alternative.question.zone,
    )


def io_ops(*, max_io_ops_per_host: int = 8, for_nova: bool = False) -> Rule:
    """Accept hosts with fewer builds in progress than `max_io_ops_per_host`; aggregates may override it.

    An instance that Nova builds is accepted on every host, because Nova does not enable this filter by
    default; the option `for_nova` applies the limit to Nova's instances too.
    """
    key = "max_io_ops_per_host"

    # Written without helper functions for speed: every boot calls this filter.
    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if alternative.is_external and not for_nova:
            return None
        most = host.limit(key, max_io_ops_per_host)
        return None if host.building < most else f"building {host.building} already, at most {most:g} at once"

    return Rule(
        "io_ops",
        refuses,
        reads=("is_external",),
        passes=True,
        admits=lambda view, alternative: view.fact("building") < view.override(key, max_io_ops_per_host),
        concerns=lambda alternative: for_nova or not alternative.is_external,
    )


def few_failures(*, max_build_failures: float = 2.5) -> Rule:
    """Accept hosts with fewer recent failed builds than permitted; the count of failures decays with time."""

    def why(host: HostFacts, alternative: Alternative) -> str:
        failed = f"builds failed there recently ({host.failures:.1f}, fading)"
        return f"{failed}: left alone from {max_build_failures:g}"

    return array_rule(
        "few_failures", lambda view, alternative: view.fact("failures") < max_build_failures, why, passes=True
    )


def num_instances(*, max_instances_per_host: int = 50) -> Rule:
    """Accept hosts with fewer instances than `max_instances_per_host`; aggregates may override it.

    For a host that has sent no report, only builds sent recently are counted.
    """
    key = "max_instances_per_host"

    def admits(view: View, alternative: Alternative) -> Number:
        instances = view.fact("instances", 0.0) + view.fact("sent")
        return instances < view.override(key, max_instances_per_host)

    def why(host: HostFacts, alternative: Alternative) -> str:
        instances = host.sent + (host.state.instances if host.state is not None else 0)
        return f"{instances} instances there already, at most {host.limit(key, max_instances_per_host):g}"

    return array_rule("num_instances", admits, why)


def metrics(*, weight_setting: Mapping[str, float] | None = None) -> Rule:
    """Accept hosts that report all metrics in `weight_setting`, which the weigher `metrics` also reads."""
    names = tuple(weight_setting or ())

    def why(host: HostFacts, alternative: Alternative) -> str:
        view = OneHost(host)
        missing = [name for name in names if not view.known(view.metric(name))]
        return f"it does not report {', '.join(missing)}"

    return array_rule(
        "metrics",
        lambda view, alternative: reduce(and_, [view.known(view.metric(name)) for name in names]),
        why,
        lambda alternative: bool(names),
    )


# Section: filters for the requirements of image, flavor and hint `query`, and for aggregates' metadata.


TENANT = "filter_tenant_id"  # also the prefix of further keys, because the length of a value is limited
_AGGREGATES = "aggregate_instance_extra_specs:"
_IMAGES = ("hw_", "img_", "os_")  # prefixes of Nova's image properties
_OLDER = {"architecture", "hypervisor_type", "hypervisor_version_requires", "vm_mode", "auto_disk_config"}


def aggregate_multi_tenancy_isolation() -> Rule:
    """Accept hosts if their aggregates name the request's project (`filter_tenant_id*`) or no project."""

    def admits(view: View, alternative: Alternative) -> Number:
        project = alternative.request.project
        reserved = view.within(_names_tenants)
        return (reserved == 0) | (view.within(lambda aggregate: project in _tenants(aggregate)) == 1)

    def why(host: HostFacts, alternative: Alternative) -> str:
        return f"its aggregates are for projects other than {alternative.request.project}"

    return array_rule("aggregate_multi_tenancy_isolation", admits, why, code="tenant", reads=("project",))


def aggregate_type_affinity() -> Rule:
    """Accept hosts if their aggregates name the request's flavor (`instance_type`) or no flavor."""
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

    reads = ("flavor.extra_specs",)
    return array_rule("aggregate_instance_extra_specs", admits, why, concerns, reads=reads)


def demands(extra_specs: Mapping[str, str], scope: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (key without prefix, value, has prefix) for each extra spec with the prefix `scope` in its key,
    or without prefix.
    """
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
    return [id_ for key in aggregate.metadata if key.startswith(TENANT) for id_ in _listed(aggregate, key)]


# Names of image properties: the present name, then the former one.
_ARCHITECTURE = ("hw_architecture", "architecture")
_HYPERVISOR = ("img_hv_type", "hypervisor_type")
_VM_MODE = ("hw_vm_mode", "vm_mode")
_VERSION = ("img_hv_requested_version", "hypervisor_version_requires")
_ADDRESS_BITS = ("hw_maxphysaddr_bits",)
_SPELLINGS: Mapping[str, str] = {
    "amd64": "x86_64",
    "x86-64": "x86_64",
    "x64": "x86_64",
    "x86": "i686",
    "i386": "i686",
    "i486": "i686",
    "i586": "i686",
    "arm64": "aarch64",
    "hv": "hvm",
    "pv": "xen",
    "baremetal": "hvm",
}
_CONDITION = re.compile(r"\s*(==|!=|<=|>=|<|>|=)?\s*([0-9]+(?:\.[0-9]+)*)\s*")


def image_properties(*, image_properties_default_architecture: str = "") -> Rule:
    """Accept hosts with the architecture, hypervisor, VM mode and version that the image requires.

    A host that does not report a required architecture, hypervisor or VM mode is rejected. A host that does
    not report its version or address width is accepted.
    """
    default = image_properties_default_architecture

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        image = alternative.request.image
        if image is None:
            return None
        demanded = (_of(image, _ARCHITECTURE) or default, _of(image, _HYPERVISOR), _of(image, _VM_MODE))
        why = _kind(demanded, host.state) if any(demanded) else None
        return why or _version(image, host.state) or _address_bits(image, host.state)

    def concerns(alternative: Alternative) -> bool:
        return alternative.request.image is not None

    return Rule("image_properties", refuses, reads=("image",), concerns=concerns)


def isolated_hosts(
    *,
    isolated_hosts: Sequence[str] = (),
    isolated_images: Sequence[str] = (),
    restrict_isolated_hosts_to_isolated_images: bool = True,
) -> Rule:
    """Accept isolated images only on isolated hosts, and other images on isolated hosts only if options
    permit it.

    The options list hosts by name or root, and images by name.
    """
    hosts, images = frozenset(isolated_hosts), frozenset(isolated_images)

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        image = alternative.request.image
        is_isolated = image is not None and image.name in images
        isolated = host.host in hosts or host.root in hosts
        if is_isolated and not isolated:
            return f"image {image.name if image else ''!r} runs on isolated hosts only"
        if isolated and not is_isolated and restrict_isolated_hosts_to_isolated_images:
            return "it is only for isolated images"
        return None

    any_isolated = bool(hosts or images)
    return Rule("isolated_hosts", refuses, reads=("image",), concerns=lambda alternative: any_isolated)


_Kind = tuple[str, str, str]  # a type of guest: architecture, hypervisor, VM mode


def _kind(demanded: _Kind, state: HostState | None) -> str | None:
    """Return why a host cannot run guests of this architecture, hypervisor and VM mode; None if it can. An
    empty text in `demanded` permits every value.
    """
    kinds = _parts(state.guest_kinds) if state is not None else ()
    has: Sequence[Sequence[str]] = tuple(zip(*kinds, strict=True)) or ((), (), ())
    if state is not None and not kinds:
        has = (state.architecture,), (state.hypervisor,), state.vm_modes
    for name, needed, values in zip(("architecture", "hypervisor", "VM mode"), demanded, has, strict=True):
        if needed and _spelled(needed) not in [_spelled(value) for value in values]:
            names = ", ".join(dict.fromkeys(filter(None, values)))
            reported = f"it has {names}" if names else "it does not report any"
            return f"the image needs {name} {needed}; {reported}"
    if not kinds or any(_is_of(kind, demanded) for kind in kinds):
        return None
    return f"the image needs {', '.join(filter(None, demanded))}; no kind of its guests has all of it"


def _is_of(kind: _Kind, demanded: _Kind) -> bool:
    return all(
        not needed or _spelled(needed) == _spelled(part) for needed, part in zip(demanded, kind, strict=True)
    )


@lru_cache(maxsize=1024)
def _parts(kinds: tuple[str, ...]) -> tuple[_Kind, ...]:
    """Split guest kinds such as `x86_64/kvm/hvm` into parts; cached, because many hosts have equal kinds."""
    parts = [kind.split("/", 2) for kind in kinds]
    return tuple([(part[0], part[1], part[2]) for part in parts if len(part) == 3])


def _of(image: Image, names: Sequence[str]) -> str:
    return next((image.properties[name] for name in names if image.properties.get(name)), "")


def _spelled(text: str) -> str:
    plain = text.strip().lower()
    return _SPELLINGS.get(plain, plain)


def _version(image: Image, state: HostState | None) -> str | None:
    needed = _of(image, _VERSION)
    if not needed or state is None or not state.hypervisor_version:
        return None
    conditions = _conditions(needed)
    if conditions is None:
        return f"the image needs hypervisor version {needed!r}, which is not a valid condition"
    number = state.hypervisor_version
    version = (number // 1_000_000, number // 1000 % 1000, number % 1000)
    if all(OPERATORS[sign](version, wanted) for sign, wanted in conditions):
        return None
    return f"the image needs hypervisor version {needed}; it has {'.'.join(map(str, version))}"


@lru_cache(maxsize=256)
def _conditions(text: str) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Parse conditions such as `>=6.0, <7`; return None if the text is invalid."""
    found = []
    for part in text.strip().strip("()").split(","):
        match = _CONDITION.fullmatch(part)
        if match is None:
            return None
        numbers = [int(number) for number in match[2].split(".")]
        sign = "==" if match[1] in (None, "=") else match[1]
        found.append((sign, (*numbers, 0, 0, 0)[:3]))
    return tuple(found)


def _address_bits(image: Image, state: HostState | None) -> str | None:
    needed = _of(image, _ADDRESS_BITS)
    if not needed or state is None:
        return None
    reported = capability(state, "cpu_info:maxphysaddr:bits") or capability(state, "maxphysaddr_bits")
    if not reported or not reported.isdecimal() or not needed.isdecimal() or int(reported) >= int(needed):
        return None
    return f"the image needs addresses of {needed} bits; it has {reported}"


_CAPABILITIES = "capabilities:"


def compute_capabilities() -> Rule:
    """Accept hosts that satisfy the extra specs named `capabilities:PATH` or by the name of an attribute.

    If the host does not report the attribute, a `capabilities:` requirement fails, and a name without a scope
    is ignored.
    """

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        for path, demand, scoped in demands(alternative.flavor.extra_specs, _CAPABILITIES):
            value = attribute(host, path)
            if (value is None and scoped) or (value is not None and not meets(value, demand)):
                return f"{path} is to be {demand}; {f'it is {value}' if value else 'it is not reported'}"
        return None

    def concerns(alternative: Alternative) -> bool:
        return any(demands(alternative.flavor.extra_specs, _CAPABILITIES))

    return Rule("compute_capabilities", refuses, reads=("flavor.extra_specs",), concerns=concerns)


def json() -> Rule:
    """Accept hosts for which the hint `query` is true, such as `[">=", "$free_ram_mb", 1024]`."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        query = alternative.request.hints.query
        try:
            return None if not query or holds(parsed(query), host) else "the query is not true of it"
        except UnreadableQuery as problem:
            return f"the query means nothing: {problem}"

    def concerns(alternative: Alternative) -> bool:
        return bool(alternative.request.hints.query)

    return Rule("json", refuses, reads=("hints.query",), concerns=concerns)


# The built-in filters. A function with the name of the filter makes it; the arguments are the filter's
# options.


RULES: Mapping[str, Callable[..., Rule]] = {
    made.__name__: made
    for made in (
        up,
        enabled,
        zone,
        io_ops,
        compute_capabilities,
        image_properties,
        same_host,
        different_host,
        aggregate_multi_tenancy_isolation,
        simple_cidr_affinity,
        all_hosts,
        few_failures,
        num_instances,
        isolated_hosts,
        metrics,
        json,
        aggregate_image_properties_isolation,
        aggregate_instance_extra_specs,
        aggregate_type_affinity,
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
