"""Checks hints before hosts are searched."""

import ipaddress

from bus.messages import BuildRequested
from scheduler_worker.core.invalid_request import Unreadable
from scheduler_worker.core.json_query import UnreadableQuery, parsed


def check_hints(request: BuildRequested) -> tuple[str, ...]:
    """Return a sentence for each hint without effect; raise Unreadable for a hint that must be understood and
    is not.
    """
    hints = request.hints
    both = set(hints.same_host) & set(hints.different_host)
    if both:
        raise Unreadable(f"hints.same_host and hints.different_host both name {min(both)}")
    for field in ("same_host", "different_host"):
        own = set(getattr(hints, field)) & set(request.instances)
        if own:
            raise Unreadable(f"hints.{field}: {min(own)} is one of the instances asked for")
    if hints.query:
        _check_query(hints.query)
    if hints.build_near_host_ip:
        _check_network(hints.build_near_host_ip, hints.cidr)
    elif hints.cidr != "/24":
        return ("hints.cidr: means something only with hints.build_near_host_ip",)
    return ()


def _check_network(address: str, cidr: str) -> None:
    try:
        near = ipaddress.ip_address(address)
    except ValueError:
        raise Unreadable(f"hints.build_near_host_ip: {address!r} is no IP address") from None
    bits = cidr.removeprefix("/")
    if not bits.isdecimal() or int(bits) > near.max_prefixlen:
        raise Unreadable(f"hints.cidr: {cidr!r} is none of /0 to /{near.max_prefixlen}")


def _check_query(text: str) -> None:
    try:
        parsed(text)
    except UnreadableQuery as problem:
        raise Unreadable(f"hints.query: {problem}") from None
