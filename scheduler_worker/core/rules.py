"""The kernel's filters: the state of a host, its zone, its builds, and the instances that hints name."""

from collections.abc import Callable, Mapping

from bus.host_health import DISABLED, FORCED_DOWN, why_disabled
from scheduler_worker.core.rule import Alternative, HostFacts, Number, Rule, View, array_rule


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


_FORCED_DOWN = "forced down by an operator"


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


# The built-in filters. A function with the name of the filter makes it; the arguments are the filter's
# options.


RULES: Mapping[str, Callable[..., Rule]] = {
    made.__name__: made for made in (up, enabled, zone, io_ops, same_host, different_host, few_failures)
}

# Filters enabled by default: Nova's defaults, and filters without effect unless a request or aggregate uses
# them.
DEFAULT_RULES = ("up", "enabled", "zone", "io_ops", "same_host", "different_host")

# Other accepted names (of Nova, or former ones) → filters. A module path before a class name is ignored.
RULES_CALLED: Mapping[str, tuple[str, ...]] = {
    "ComputeFilter": ("up", "enabled"),
    "AvailabilityZoneFilter": ("zone",),
    "IoOpsFilter": ("io_ops",),
    "AggregateIoOpsFilter": ("io_ops",),
    "SameHostFilter": ("same_host",),
    "DifferentHostFilter": ("different_host",),
    "host_is_up": ("up",),
    "host_is_enabled": ("enabled",),
    "same_zone": ("zone",),
    "few_builds_in_flight": ("io_ops",),
}

# Scheduler hint → the filter that reads it; "": only filters of features read it.
HINTS: Mapping[str, str] = {
    "same_host": "same_host",
    "different_host": "different_host",
    "build_near_host_ip": "",
    "query": "",
}

# Filters of Nova that berth does not need → why.
RULES_OF_PLACEMENT: Mapping[str, str] = {
    "NUMATopologyFilter": "NUMA cells that agents of berth report are providers: `hw:numa_nodes` asks"
    " placement for a group from each. Nova does not report the cells of its hosts: for them, requests with a"
    " NUMA topology are not decided",
    "PciPassthroughFilter": "devices are providers, if the host reports them: each device asked for is a"
    " group of placement's question",
    "CoreFilter": "placement offers only hosts with enough VCPU",
    "RamFilter": "placement offers only hosts with enough MEMORY_MB",
    "DiskFilter": "placement offers only hosts with enough DISK_GB",
    "RetryFilter": "a host that refused a build is no alternate of it again",
}
