"""Traits of root providers with which operators and agents keep new instances away from a host."""

from collections.abc import Iterable

DISABLED = "COMPUTE_STATUS_DISABLED"  # set by Nova, too, on a disabled host
FORCED_DOWN = "CUSTOM_BERTH_FORCED_DOWN"  # forced down by an operator, whatever its heartbeats
HELD = "CUSTOM_BERTH_HELD_"  # prefix of a trait for each cause of being disabled
UNNAMED = "operator"  # the cause if the operator named none
DRAIN = f"{HELD}DRAIN"  # the cause while a host is drained


def causes_in(traits: Iterable[str]) -> list[str]:
    """Return the causes for which operators disabled a host with the traits, in alphabetical order."""
    return sorted(one.removeprefix(HELD).lower() for one in traits if one.startswith(HELD))


def why_disabled(traits: Iterable[str]) -> str:
    """Return why a host with the trait `DISABLED` is disabled, with the causes that operators gave."""
    causes = causes_in(traits)
    if not causes:
        return "disabled"
    named = ", ".join(one for one in causes if one != UNNAMED)
    return f"disabled by an operator: {named}" if named else "disabled by an operator"
