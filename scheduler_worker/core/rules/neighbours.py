"""Filters about other instances: server groups, `same_host`, `different_host` and nearby addresses."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from scheduler_worker.core.rule import Alternative, HostFacts, Number, Rule, View, array_rule

AFFINITY = "server_group_affinity"
SERVER_GROUP = "server_group"  # what their refusals are known by
GROUP = "group"  # the part of a request that group filters read


def server_group_anti_affinity() -> Rule:
    """The host has fewer members of the request's anti-affinity group than permitted (`max_per_host`)."""

    def concerns(alternative: Alternative) -> bool:
        return alternative.group is not None and alternative.group.policy == "anti-affinity"

    def admits(view: View, alternative: Alternative) -> Number:
        most = alternative.group.max_per_host if alternative.group is not None else 1
        return (view.members(alternative) < most) | (view.among(alternative.own) == 1)

    def why(host: HostFacts, alternative: Alternative) -> str:
        there, group = alternative.members.get(host.root, 0), alternative.group
        return f"{there} of server group {group.name} there, at most {group.max_per_host}" if group else ""

    return array_rule("server_group_anti_affinity", admits, why, concerns, code=SERVER_GROUP, reads=(GROUP,))


def server_group_affinity() -> Rule:
    """The host has the group's other members; first members need capacity for all that arrive together."""

    def concerns(alternative: Alternative) -> bool:
        hard = alternative.group is not None and alternative.group.policy == "affinity"
        return hard and bool(alternative.members or alternative.together)

    def admits(view: View, alternative: Alternative) -> Number:
        members = view.members(alternative)
        if alternative.together is None or alternative.members:
            return members > 0
        enough = members == 0
        for name, amount in alternative.together.asked.items():
            enough = enough & (view.free(name) >= amount)
        return enough

    def why(host: HostFacts, alternative: Alternative) -> str:
        name = alternative.group.name if alternative.group is not None else ""
        if alternative.members or alternative.together is None:
            return f"none of server group {name} there"
        return f"no room for {alternative.together.several} of server group {name} together"

    return array_rule(AFFINITY, admits, why, concerns, code=SERVER_GROUP, reads=(GROUP,))


def same_host() -> Rule:
    """The host has an instance named by the hint `same_host`."""
    return array_rule(
        "same_host",
        lambda view, alternative: view.among(alternative.same or ()) == 1,
        lambda host, alternative: "none of the instances of same_host is there",
        lambda alternative: alternative.same is not None,
        reads=("hints.same_host",),
    )


def different_host() -> Rule:
    """The host has no instance of the hint `different_host`."""
    return array_rule(
        "different_host",
        lambda view, alternative: view.among(alternative.different) == 0,
        lambda host, alternative: "an instance of different_host is there",
        lambda alternative: bool(alternative.different),
        reads=("hints.different_host",),
    )


def simple_cidr_affinity() -> Rule:
    """The host's address is in the network of the hints `build_near_host_ip` and `cidr`; a host without a
    known address is rejected.
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
