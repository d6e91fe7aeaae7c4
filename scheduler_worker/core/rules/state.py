"""Filters about a host's reported state and heartbeats."""

from collections.abc import Mapping
from functools import reduce
from operator import and_

from bus.host_health import DISABLED, FORCED_DOWN, why_disabled
from scheduler_worker.core.rule import Alternative, HostFacts, Number, OneHost, Rule, View, array_rule

_FORCED_DOWN = "forced down by an operator"


def all_hosts() -> Rule:
    """Every host is accepted."""
    return Rule("all_hosts", lambda host, alternative: None, concerns=lambda alternative: False)


def up() -> Rule:
    """Heartbeats of the host and of its agent arrive; a host without any report so far is accepted."""
    return Rule(
        "up",
        lambda host, alternative: host.down or None,
        code="down",
        passes=True,
        admits=lambda view, alternative: view.fact("up") == 1,
    )


def enabled() -> Rule:
    """The host is neither disabled, by its agent or in placement, nor forced down."""

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
        # otherwise placement has rejected such hosts already
        if DISABLED not in alternative.question.root_forbidden:
            open_ = open_ & (view.has(DISABLED) == 0)
        return open_ & (view.has(FORCED_DOWN) == 0)

    return Rule("enabled", refuses, code="disabled", admits=admits)


def zone() -> Rule:
    """The host is in the requested zone, by its report or by one of its aggregates (`availability_zone`)."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        asked = alternative.request.zone
        own = host.zone or (host.state.zone if host.state is not None else "")
        if not asked or own == asked:
            return None
        zones = [own, *host.metadata("availability_zone")] if own else [*host.metadata("availability_zone")]
        if asked in zones:
            return None
        return f"in zone {', '.join(map(repr, zones)) or repr('')}, not in {asked!r}"

    # Where the question names the zone, placement has offered no host of another.
    return Rule(
        "zone",
        refuses,
        reads=("zone",),
        concerns=lambda alternative: bool(alternative.request.zone) and not alternative.question.zone,
    )


def io_ops(*, max_io_ops_per_host: int = 8) -> Rule:
    """The host has fewer builds in progress than permitted; aggregates may override `max_io_ops_per_host`."""
    key = "max_io_ops_per_host"

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:  # by hand, for every boot asks it
        most = host.limit(key, max_io_ops_per_host)
        return None if host.building < most else f"building {host.building} already, at most {most:g} at once"

    return Rule(
        "io_ops",
        refuses,
        passes=True,
        admits=lambda view, alternative: view.fact("building") < view.override(key, max_io_ops_per_host),
    )


def few_failures(*, max_build_failures: float = 2.5) -> Rule:
    """The host has fewer recent failed builds than permitted; failures fade, and then it is tried again."""

    def why(host: HostFacts, alternative: Alternative) -> str:
        failed = f"builds failed there lately ({host.failures:.1f}, fading)"
        return f"{failed}: left alone from {max_build_failures:g}"

    return array_rule(
        "few_failures", lambda view, alternative: view.fact("failures") < max_build_failures, why, passes=True
    )


def num_instances(*, max_instances_per_host: int = 50) -> Rule:
    """The host has fewer instances than permitted; aggregates may override `max_instances_per_host`.

    For a host without reports only builds sent recently are counted.
    """
    key = "max_instances_per_host"

    def admits(view: View, alternative: Alternative) -> Number:
        there = view.fact("instances", 0.0) + view.fact("sent")
        return there < view.override(key, max_instances_per_host)

    def why(host: HostFacts, alternative: Alternative) -> str:
        there = host.sent + (host.state.instances if host.state is not None else 0)
        return f"{there} instances there already, at most {host.limit(key, max_instances_per_host):g}"

    return array_rule("num_instances", admits, why)


def metrics(*, weight_setting: Mapping[str, float] | None = None) -> Rule:
    """The host reports all metrics of `weight_setting`, which is shared with the weigher of this name."""
    names = tuple(weight_setting or ())

    def why(host: HostFacts, alternative: Alternative) -> str:
        view = OneHost(host)
        missing = [name for name in names if not view.said(view.metric(name))]
        return f"it does not report {', '.join(missing)}"

    return array_rule(
        "metrics",
        lambda view, alternative: reduce(and_, [view.said(view.metric(name)) for name in names]),
        why,
        lambda alternative: bool(names),
    )
