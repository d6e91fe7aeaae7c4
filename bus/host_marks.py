"""Traits of a root by which operators, and agents, keep new instances away from it."""

from collections.abc import Iterable

DISABLED = "COMPUTE_STATUS_DISABLED"  # how Nova marks a disabled host in placement
FORCED_DOWN = "CUSTOM_BERTH_FORCED_DOWN"  # an operator says that it is down, whatever is heard of it
HELD = "CUSTOM_BERTH_HELD_"  # and a word: one cause of several why it is disabled, to be taken away by itself
UNNAMED = "operator"  # the cause of an operator that named no cause, beside other causes
DRAIN = f"{HELD}DRAIN"  # the cause of a host that is being emptied


def causes_in(traits: Iterable[str]) -> list[str]:
    """Return the causes for which operators disabled a host with these traits, in alphabetical order."""
    return sorted(one.removeprefix(HELD).lower() for one in traits if one.startswith(HELD))


def why_disabled(traits: Iterable[str]) -> str:
    """Return why a host with the trait `DISABLED` is disabled, with the causes that operators gave."""
    causes = causes_in(traits)
    if not causes:
        return "disabled"
    named = ", ".join(one for one in causes if one != UNNAMED)
    return f"disabled by an operator: {named}" if named else "disabled by an operator"
