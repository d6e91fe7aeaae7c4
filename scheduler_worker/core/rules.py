"""The kernel's filters: the state of a host, its zone and project, and the other instances on it."""

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from operator import and_

from bus.aggregates import Aggregate
from bus.host_health import DISABLED, FORCED_DOWN, why_disabled
from scheduler_worker.core.rule import Alternative, HostFacts, Number, OneHost, Rule, View, array_rule


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


TENANT = "filter_tenant_id"  # also the prefix of further keys, because the length of a value is limited


def aggregate_multi_tenancy_isolation() -> Rule:
    """Accept hosts if their aggregates name the request's project (`filter_tenant_id*`) or no project."""

    def admits(view: View, alternative: Alternative) -> Number:
        project = alternative.request.project
        reserved = view.within(_names_tenants)
        return (reserved == 0) | (view.within(lambda aggregate: project in _tenants(aggregate)) == 1)

    def why(host: HostFacts, alternative: Alternative) -> str:
        return f"its aggregates are for projects other than {alternative.request.project}"

    return array_rule("aggregate_multi_tenancy_isolation", admits, why, code="tenant", reads=("project",))


def listed(aggregate: Aggregate, key: str) -> list[str]:
    """Return the values, separated by commas, that an aggregate has for a metadata key."""
    text = aggregate.metadata.get(key)
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _names_tenants(aggregate: Aggregate) -> bool:
    return any(key.startswith(TENANT) and value.strip() for key, value in aggregate.metadata.items())


def _tenants(aggregate: Aggregate) -> list[str]:
    return [id_ for key in aggregate.metadata if key.startswith(TENANT) for id_ in listed(aggregate, key)]


# The built-in filters. A function with the name of the filter makes it; the arguments are the filter's
# options.


RULES: Mapping[str, Callable[..., Rule]] = {
    made.__name__: made
    for made in (
        up,
        enabled,
        zone,
        io_ops,
        same_host,
        different_host,
        aggregate_multi_tenancy_isolation,
        simple_cidr_affinity,
        all_hosts,
        few_failures,
        num_instances,
        metrics,
    )
}

# Filters enabled by default: Nova's defaults, and filters without effect unless a request or aggregate uses
# them.
DEFAULT_RULES = """
    up enabled zone io_ops same_host different_host simple_cidr_affinity aggregate_multi_tenancy_isolation
""".split()  # noqa: SIM905 - shorter than a list

# Other accepted names (of Nova, or former ones) → filters. A module path before a class name is ignored.
RULES_CALLED: Mapping[str, tuple[str, ...]] = {
    "ComputeFilter": ("up", "enabled"),
    "AvailabilityZoneFilter": ("zone",),
    "IoOpsFilter": ("io_ops",),
    "AggregateIoOpsFilter": ("io_ops",),
    "NumInstancesFilter": ("num_instances",),
    "AggregateNumInstancesFilter": ("num_instances",),
    "SameHostFilter": ("same_host",),
    "DifferentHostFilter": ("different_host",),
    "SimpleCIDRAffinityFilter": ("simple_cidr_affinity",),
    "AllHostsFilter": ("all_hosts",),
    "MetricsFilter": ("metrics",),
    "AggregateMultiTenancyIsolation": ("aggregate_multi_tenancy_isolation",),
    "host_is_up": ("up",),
    "host_is_enabled": ("enabled",),
    "same_zone": ("zone",),
    "few_builds_in_flight": ("io_ops",),
}

# Scheduler hint → the filter that reads it; "": only filters of features read it.
HINTS: Mapping[str, str] = {
    "same_host": "same_host",
    "different_host": "different_host",
    "build_near_host_ip": "simple_cidr_affinity",
    "query": "",
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
