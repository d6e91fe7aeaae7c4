"""Ironic's provision state machine as a table, and the notification phase of each transition."""

from typing import Literal, NamedTuple

Phase = Literal["start", "end", "success", "error"]

# The transitions of each state, as in Ironic 39.
PATHS: dict[str, dict[str, str]] = {
    "enroll": {"manage": "verifying"},
    "verifying": {"done": "manageable", "fail": "enroll"},
    "manageable": {
        "provide": "cleaning", "clean": "cleaning", "inspect": "inspecting", "adopt": "adopting",
    },
    "inspecting": {"done": "manageable", "fail": "inspect failed", "wait": "inspect wait"},
    "inspect wait": {
        "done": "manageable", "fail": "inspect failed", "abort": "inspect failed", "resume": "inspecting",
    },
    "inspect failed": {"manage": "manageable", "inspect": "inspecting"},
    "adopting": {"done": "active", "fail": "adopt failed"},
    "adopt failed": {"adopt": "adopting", "manage": "manageable"},
    "cleaning": {
        "done": "available", "manage": "manageable", "fail": "clean failed", "wait": "clean wait",
        "hold": "clean hold",
    },
    "clean wait": {
        "resume": "cleaning", "fail": "clean failed", "abort": "clean failed", "hold": "clean hold",
    },
    "clean hold": {"unhold": "clean wait", "abort": "clean failed"},
    "clean failed": {"manage": "manageable"},
    "available": {"deploy": "deploying", "manage": "manageable"},
    "deploying": {
        "done": "active", "fail": "deploy failed", "wait": "wait call-back", "hold": "deploy hold",
    },
    "wait call-back": {
        "resume": "deploying", "fail": "deploy failed", "abort": "deploy failed", "hold": "deploy hold",
        "delete": "deleting",
    },
    "deploy hold": {"unhold": "wait call-back", "abort": "deploy failed"},
    "deploy failed": {"deploy": "deploying", "rebuild": "deploying", "delete": "deleting"},
    "active": {
        "rebuild": "deploying", "delete": "deleting", "rescue": "rescuing", "service": "servicing",
    },
    "deleting": {"clean": "cleaning", "fail": "error"},
    "error": {"rebuild": "deploying", "delete": "deleting"},
    "rescuing": {"done": "rescue", "fail": "rescue failed", "wait": "rescue wait"},
    "rescue wait": {
        "resume": "rescuing", "fail": "rescue failed", "abort": "rescue failed", "delete": "deleting",
    },
    "rescue": {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"},
    "rescue failed": {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"},
    "unrescuing": {"done": "active", "fail": "unrescue failed"},
    "unrescue failed": {"rescue": "rescuing", "unrescue": "unrescuing", "delete": "deleting"},
    "servicing": {
        "done": "active", "fail": "service failed", "wait": "service wait", "hold": "service hold",
    },
    "service wait": {
        "resume": "servicing", "fail": "service failed", "abort": "service failed", "hold": "service hold",
        "delete": "deleting",
    },
    "service hold": {
        "unhold": "service wait", "service": "servicing", "fail": "service failed",
        "abort": "service failed",
    },
    "service failed": {
        "service": "servicing", "rescue": "rescuing", "wait": "service wait", "hold": "service hold",
        "delete": "deleting", "abort": "active",
    },
}  # fmt: skip

# The target state of each transient state.
_BOUND_FOR = {
    "verifying": "manageable", "inspecting": "manageable", "inspect wait": "manageable",
    "inspect failed": "manageable", "adopting": "active", "adopt failed": "active", "cleaning": "available",
    "clean wait": "available", "clean hold": "available", "clean failed": "available",
    "deleting": "available", "deploying": "active", "wait call-back": "active", "deploy hold": "active",
    "deploy failed": "active", "rescuing": "rescue", "rescue wait": "rescue", "rescue failed": "rescue",
    "unrescuing": "active", "unrescue failed": "active", "servicing": "active", "service wait": "active",
    "service hold": "active", "service failed": "active",
}  # fmt: skip

STABLE = frozenset(PATHS) - frozenset(_BOUND_FOR)
UNSTABLE = frozenset({
    "deploying", "wait call-back", "cleaning", "clean wait", "verifying", "deleting", "inspecting",
    "inspect wait", "adopting", "rescuing", "rescue wait", "unrescuing", "servicing", "service wait",
})  # fmt: skip
WAITING = frozenset({"wait call-back", "clean wait", "inspect wait", "rescue wait", "service wait"})

# States in which a node in transition may be changed, and in which a node may be deleted.
CHANGEABLE = frozenset({
    "deploy failed", "inspect failed", "inspect wait", "clean failed", "error", "verifying", "adopt failed",
    "rescue failed", "unrescue failed", "service hold", "service failed",
})  # fmt: skip
DELETABLE = ("manageable", "enroll", "adopt failed", "available")
NEW_CLASS_IN = ("enroll", "inspecting", "inspect wait", "manageable", "available")

# The target in a request, and the event that it stands for.
VERBS = {
    "active": "deploy", "deploy": "deploy", "rebuild": "rebuild", "deleted": "delete", "undeploy": "delete",
    "manage": "manage", "provide": "provide", "inspect": "inspect", "abort": "abort", "clean": "clean",
    "adopt": "adopt", "rescue": "rescue", "unrescue": "unrescue", "unhold": "unhold", "service": "service",
}  # fmt: skip


class Move(NamedTuple):
    state: str
    target: str | None
    phase: Phase


def event_of(target: str, state: str) -> str | None:
    """Return the event for this target in this state, or None if it is impossible."""
    event = VERBS.get(target)
    return event if event in PATHS[state] else None


def move(state: str, event: str, *, working: bool = False, bound_for: str | None = None) -> Move:
    """Return the transition of an event. While work continues on the node (`working`), its target stays
    visible.
    """
    new = PATHS[state][event]
    target = bound_for if bound_for is not None else _BOUND_FOR.get(new)
    if new in STABLE and not working:
        target = None
    return Move(new, target, phase(state, new, event))


def phase(state: str, new: str, event: str) -> Phase:
    """Return the notification phase of a transition."""
    if event == "fail":
        return "error"
    before, after = state in UNSTABLE, new in UNSTABLE
    if before == after:
        return "success"
    return "start" if after else "end"
