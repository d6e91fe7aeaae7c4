"""Decides guests' states during moves, which move orders are outdated, and which guests an agent must run.

prepare   no guest → arriving, and devices are reserved for the guest
send      running → stopped: immediately or, in a live migration, when the copy is complete
start     arriving → running
resume    the guest on the source host gets a new attempt number and runs again
rebuild   the guest runs until its successor replaces it under a new attempt number
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Literal

from bus.claims import MIGRATION
from bus.moves import MoveOrdered, MoveReported

GuestState = Literal["arriving", "running", "stopped"]
PhaseEnd = Literal["done", "failed", "hung", "lost"]  # lost: the power failed meanwhile

REMEMBERED = 100_000  # builds


def refusal(order: MoveOrdered, states: Mapping[int, GuestState]) -> str:
    """Return why a phase of a move cannot begin on a host; "" if it can. `states`: the states of the build's
    guests on this host, by attempt.
    """
    match order.phase:
        case "prepare":
            return ""
        case "send" | "start" if order.attempt not in states:
            return f"there is no guest of attempt {order.attempt} here"
        case "send" if states[order.attempt] == "arriving":
            return f"the guest of attempt {order.attempt} has never run here"
        case "resume" | "rebuild" if order.attempt not in states and order.was not in states:
            return f"there is no guest of attempt {order.was} here"
    theirs = (order.attempt, order.was)
    others = [attempt for attempt, state in states.items() if state == "running" and attempt not in theirs]
    if order.phase in ("start", "resume") and others:
        return f"its guest of attempt {others[0]} runs here"
    return ""


def meanwhile(order: MoveOrdered, state: GuestState) -> GuestState:
    """Return a guest's state during a phase of its move: stopped in the phase `send` of a move that is not
    live, else `state`, unchanged.
    """
    return "stopped" if order.phase == "send" and order.kind != "live" else state


def afterwards(order: MoveOrdered, state: GuestState, end: PhaseEnd) -> GuestState | None:
    """Return the state of a guest after a phase of a move, from its state before and the phase's outcome
    `end`; None if the guest no longer exists.
    """
    match order.phase, end:
        case "start" | "resume" | "rebuild", "done":
            return "running"
        case "send", "done":
            return "stopped"
        case "send", "failed" | "hung":  # the guest continues, or resumes, where it is
            return "running"
        case "prepare" | "start", "failed":
            return None
        case _:
            return state


class MoveSteps:
    """Remembers the last move order of each build on each host, with the report of its outcome."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._known: OrderedDict[str, dict[str, tuple[int, MoveReported | None]]] = OrderedDict()

    def ordered(self, order: MoveOrdered) -> MoveReported | Literal["go on", "void"]:
        """Return the stored report if the order was executed before, `void` if the agent knows a later order
        of the build on this host, or `go on` if the order must be executed.
        """
        step, outcome = self._known.get(order.build, {}).get(order.root, (0, None))
        if order.step < step:
            return "void"
        return outcome if outcome is not None and order.step == step else "go on"

    def begun(self, order: MoveOrdered) -> None:
        self._put(order.build, order.root, order.step, None)

    def finished(self, outcome: MoveReported) -> None:
        """Record the report about a move order, unless a later order of the build on this host is known."""
        step, _ = self._known.get(outcome.build, {}).get(outcome.root, (0, None))
        if outcome.step >= step:
            self._put(outcome.build, outcome.root, outcome.step, outcome)

    def last(self, build: str, root: str) -> MoveReported | None:
        """Return the report about a build's last move order on a host; None if its phase has not ended, or if
        no order is known.
        """
        return self._known.get(build, {}).get(root, (0, None))[1]

    def known(self) -> Iterable[MoveReported]:
        return [report for on in self._known.values() for _, report in on.values() if report is not None]

    def _put(self, build: str, root: str, step: int, report: MoveReported | None) -> None:
        self._known.setdefault(build, {})[root] = step, report
        self._known.move_to_end(build)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)


Ownership = Literal["ours", "kept", "gone", "unknown"]
NOTHING = "nothing"  # the holder has no allocation on the guest's host


def ownership(build_here: bool, holder_type: str | None, kept_otherwise: bool = False) -> Ownership:
    """Return whether an agent must run (`ours`), stop (`kept`) or destroy (`gone`) a guest, or `unknown`.

    Consumers with allocations on the guest's host decide, in this sequence: the holder consumer of the
    guest's attempt (`holder_type`: its type, or NOTHING): `kept` for the type MIGRATION, else `gone`; the
    build (`build_here`): `ours`; a MIGRATION holder of another attempt (`kept_otherwise`): `kept`.
    """
    if holder_type != NOTHING:
        return "kept" if holder_type == MIGRATION else "gone"
    if build_here:
        return "ours"
    return "kept" if kept_otherwise else "unknown"
