"""The provision states of a simulated node and their transitions, a part of those of Ironic 39.

Rescue, service, inspection, adoption and rebuild are left out.
"""

from typing import Literal, NamedTuple

Phase = Literal["start", "end", "success", "error"]


class ProvisionState(NamedTuple):
    """A provision state of a node."""

    next: dict[str, str]  # event → the state that follows
    target: str | None = None  # the node's target state while it is in this state
    unstable: bool = False  # Ironic leaves the state without a request


STATES: dict[str, ProvisionState] = {
    "enroll": ProvisionState({"manage": "verifying"}),
    "verifying": ProvisionState({"done": "manageable", "fail": "enroll"}, "manageable", unstable=True),
    "manageable": ProvisionState({"provide": "cleaning"}),
    "cleaning": ProvisionState(
        {"done": "available", "fail": "clean failed", "wait": "clean wait"}, "available", unstable=True
    ),
    "clean wait": ProvisionState({"resume": "cleaning", "abort": "clean failed"}, "available", unstable=True),
    "clean failed": ProvisionState({"manage": "manageable"}, "available"),
    "available": ProvisionState({"deploy": "deploying", "manage": "manageable"}),
    "deploying": ProvisionState(
        {"done": "active", "fail": "deploy failed", "wait": "wait call-back"}, "active", unstable=True
    ),
    "wait call-back": ProvisionState(
        {"resume": "deploying", "abort": "deploy failed", "delete": "deleting"}, "active", unstable=True
    ),
    "deploy hold": ProvisionState({"abort": "deploy failed"}, "active"),
    "deploy failed": ProvisionState({"deploy": "deploying", "delete": "deleting"}, "active"),
    "active": ProvisionState({"delete": "deleting"}),
    "deleting": ProvisionState({"clean": "cleaning", "fail": "error"}, "available", unstable=True),
    "error": ProvisionState({"delete": "deleting"}),
}

# The target of a request → the event that the request causes; all other events come from Ironic.
VERBS = {"manage": "manage", "provide": "provide", "active": "deploy", "deleted": "delete", "abort": "abort"}

# States with a target state in which a node can be changed nevertheless.
CHANGEABLE = ("verifying", "clean failed", "deploy failed")
NEW_CLASS_IN = ("enroll", "manageable", "available")  # states in which the resource class can be changed


def phase_of(state: str, event: str) -> Phase:
    """Return the phase of the notification about a node that leaves a provision state with an event."""
    if event == "fail":
        return "error"
    before, after = STATES[state].unstable, STATES[STATES[state].next[event]].unstable
    if before == after:
        return "success"
    return "start" if after else "end"
