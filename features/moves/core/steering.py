"""Decides in which phases an operator may confirm, revert, abort or force a move."""

from collections.abc import Mapping

from features.moves.messages import Steering

_WHY_NOT: Mapping[Steering, str] = {
    "confirm": "it does not wait to be confirmed",
    "revert": "it does not wait to be reverted",
    "abort": "it is too late for that",
    "force": "only the copying of a live migration ends sooner",
}
_STEERED_IN: Mapping[Steering, tuple[str, ...]] = {
    "confirm": ("verify",),
    "revert": ("verify",),
    "abort": ("prepare", "send", "build", "swap", "undo"),
    "force": ("send",),
}


def why_not_steered(to: Steering, kind: str, phase: str) -> str:
    """Return why an operator cannot confirm, revert, abort or force a move of this kind and phase, or ""."""
    if phase in _STEERED_IN[to] and (to != "force" or kind == "live"):
        return ""
    return f"{_WHY_NOT[to]}: {phase}"
