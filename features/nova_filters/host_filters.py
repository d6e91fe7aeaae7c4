"""Filters for what hosts report: their attributes, addresses, metrics, instances and failed builds."""

from collections.abc import Mapping
from functools import lru_cache, reduce
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from operator import and_

from features.nova_filters.core.attributes import attribute
from features.nova_filters.core.extra_specs import CAPABILITIES, demands, meets
from features.nova_filters.core.query import UnreadableQuery, holds, parsed
from scheduler_worker.core.extension import HostFacts, Number, OneHost, Rule, View, array_rule
from scheduler_worker.extension import Alternative

_CAPABILITIES = f"{CAPABILITIES}:"


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

    return Rule(
        "compute_capabilities", refuses, reads=("flavor.extra_specs",), concerns=concerns, reads_unscoped=True
    )


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


def all_hosts() -> Rule:
    """Accept every host."""
    return Rule("all_hosts", lambda host, alternative: None, concerns=lambda alternative: False)


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
