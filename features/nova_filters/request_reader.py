"""Checks the hints that filters of the feature read, and names the extra specs that they read."""

from collections.abc import Sequence
from ipaddress import ip_address

from bus.requests import Hints
from features.nova_filters.core.extra_specs import AGGREGATES, CAPABILITIES
from features.nova_filters.core.query import UnreadableQuery, parsed
from scheduler_worker.core.extension import RequestReader, RequestReaderPart, Unreadable

_CIDR = Hints().cidr


def reader(settings: None) -> RequestReader:
    return RequestReader(scopes=frozenset({CAPABILITIES, AGGREGATES}), check_hints=check_hints)


def check_hints(hints: Hints) -> Sequence[str]:
    """Return a warning if the hint `cidr` has no effect. Raise Unreadable if a hint is invalid."""
    if hints.query:
        try:
            parsed(hints.query)
        except UnreadableQuery as problem:
            raise Unreadable(f"hints.query: {problem}") from None
    if not hints.build_near_host_ip:
        if hints.cidr == _CIDR:
            return ()
        return ("hints.cidr: means something only with hints.build_near_host_ip",)
    try:
        near = ip_address(hints.build_near_host_ip)
    except ValueError:
        why = f"{hints.build_near_host_ip!r} is no IP address"
        raise Unreadable(f"hints.build_near_host_ip: {why}") from None
    bits = hints.cidr.removeprefix("/")
    if not bits.isdecimal() or int(bits) > near.max_prefixlen:
        raise Unreadable(f"hints.cidr: {hints.cidr!r} is none of /0 to /{near.max_prefixlen}")
    return ()


PART = RequestReaderPart(reader)
