"""Filters about other instances on a host: server groups, `same_host` and `different_host`, nearby
addresses.
"""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from scheduler_worker.core.rule import Alternative, Bools, HostFacts, Rule, View

AFFINITY = "server_group_affinity"
SERVER_GROUP = "server_group"  # what their refusals are known by
GROUP = "group"  # the part of a request that group filters read


def server_group_anti_affinity() -> Rule:
    """The host has fewer members of the request's anti-affinity group than permitted (`max_per_host`)."""

    def concerns(alternative: Alternative) -> bool:
        return alternative.group is not None and alternative.group.policy == "anti-affinity"

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if (
            alternative.group is None
            or alternative.group.policy != "anti-affinity"
            or host.root in alternative.own
        ):
            return None
        there, most = alternative.members.get(host.root, 0), alternative.group.max_per_host
        return (
            None
            if there < most
            else f"{there} of server group {alternative.group.name} there, at most {most}"
        )

    def admits(view: View, alternative: Alternative) -> Bools:
        most = alternative.group.max_per_host if alternative.group is not None else 1
        few: Bools = (view.members(alternative) < most) | (view.among(alternative.own) == 1)
        return few

    return Rule(
        "server_group_anti_affinity",
        refuses,
        code=SERVER_GROUP,
        reads=(GROUP,),
        admits=admits,
        concerns=concerns,
    )


def server_group_affinity() -> Rule:
    """The host has the other members of the request's affinity group; the first members need capacity for all
    that arrive together.
    """

    def concerns(alternative: Alternative) -> bool:
        hard = alternative.group is not None and alternative.group.policy == "affinity"
        return hard and bool(alternative.members or alternative.together)

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if alternative.group is None or not concerns(alternative) or alternative.members.get(host.root, 0):
            return None
        if alternative.members or alternative.together is None:
            return f"none of server group {alternative.group.name} there"
        asked = alternative.together.asked
        if all(host.free.get(name, 0) >= amount for name, amount in asked.items()):
            return None
        return f"no room for {alternative.together.several} of server group {alternative.group.name} together"

    def admits(view: View, alternative: Alternative) -> Bools:
        beside: Bools = view.members(alternative) > 0
        if alternative.together is not None and not alternative.members:
            beside = ~beside
            for name, amount in alternative.together.asked.items():
                beside = beside & (view.free(name) >= amount)
        return beside

    return Rule(AFFINITY, refuses, code=SERVER_GROUP, reads=(GROUP,), admits=admits, concerns=concerns)


def same_host() -> Rule:
    """One of the instances of the hint `same_host` is there."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        if alternative.same is None or host.root in alternative.same:
            return None
        return "none of the instances of same_host is there"

    def admits(view: View, alternative: Alternative) -> Bools:
        there: Bools = view.among(alternative.same or ()) == 1
        return there

    return Rule(
        "same_host",
        refuses,
        reads=("hints.same_host",),
        admits=admits,
        concerns=lambda alternative: alternative.same is not None,
    )


def different_host() -> Rule:
    """The host has no instance of the hint `different_host`."""

    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        return "an instance of different_host is there" if host.root in alternative.different else None

    def admits(view: View, alternative: Alternative) -> Bools:
        apart: Bools = view.among(alternative.different) == 0
        return apart

    return Rule(
        "different_host",
        refuses,
        reads=("hints.different_host",),
        admits=admits,
        concerns=lambda alternative: bool(alternative.different),
    )


def simple_cidr_affinity() -> Rule:
    """Its address is in the network of the hints `build_near_host_ip` and `cidr`; one without is not."""

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
