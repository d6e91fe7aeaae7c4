"""Filters: a host and a request → None (admitted) or a sentence (why not). FILTERS is the list."""

from collections.abc import Callable

from bus.messages import BuildRequested
from scheduler_worker.core.host import Host

Filter = Callable[[Host, BuildRequested], str | None]

MAX_BUILDS = 8  # as Nova's max_io_ops_per_host
_DISABLED = "COMPUTE_STATUS_DISABLED"  # how Nova marks a disabled host in placement


def host_is_up(host: Host, request: BuildRequested) -> str | None:
    """Its agent is heard of."""
    return host.down or None


def host_is_enabled(host: Host, request: BuildRequested) -> str | None:
    """Nobody has disabled it, on the host or in placement."""
    if _DISABLED in host.candidate.traits:
        return f"disabled: it has the trait {_DISABLED}"
    state = host.state
    if state is None or state.enabled:
        return None
    return f"disabled: {state.why_disabled}" if state.why_disabled else "disabled"


def same_zone(host: Host, request: BuildRequested) -> str | None:
    """It is in the zone asked for."""
    if not request.zone or host.zone == request.zone:
        return None
    return f"in zone {host.zone!r}, not in {request.zone!r}"


def at_most_building(most: int) -> Filter:
    """The filter that keeps a host from building more than so many at once."""

    def few_builds_in_flight(host: Host, request: BuildRequested) -> str | None:
        """It is not building too many already."""
        building = host.building
        return None if building < most else f"building {building} already, at most {most} at once"

    return few_builds_in_flight


few_builds_in_flight = at_most_building(MAX_BUILDS)

FILTERS: tuple[Filter, ...] = (host_is_up, host_is_enabled, same_zone, few_builds_in_flight)

# Refusals that pass by themselves in seconds: no host because of these is no reason to give up at once.
PASSING = frozenset({"few_builds_in_flight", "host_is_up"})
