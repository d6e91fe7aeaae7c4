"""Decides guests' states during moves, and which move orders are outdated.

prepare   no guest → arriving, and devices are reserved for the guest
send      running → stopped: immediately or, in a live migration, when the copy is complete
start     arriving → running
resume    the guest on the source host gets a new attempt number and runs again
rebuild   the guest runs until its successor replaces it under a new attempt number
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from compute_sim.extension import GuestState
from features.moves.messages import MoveOrdered, MoveReported

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

    entry: ClassVar[type[MoveReported]] = MoveReported  # in the agent's file: the report of a phase's end

    def __init__(
        self, remembered: int = REMEMBERED, dropped: Callable[[str], None] = lambda build: None
    ) -> None:
        self._remembered = remembered
        self._dropped = dropped  # called with a build whose orders are not remembered any more
        # build → host's root → last step, and the last report, which can be that of an earlier step
        self._known: OrderedDict[str, dict[str, tuple[int, MoveReported | None]]] = OrderedDict()

    def ordered(self, order: MoveOrdered) -> MoveReported | Literal["go on", "void"]:
        """Return the stored report if the order was executed before, `void` if the agent knows a later order
        of the build on this host, or `go on` if the order must be executed.
        """
        step, report = self._known.get(order.build, {}).get(order.root, (0, None))
        if order.step < step:
            return "void"
        return report if report is not None and report.step == order.step else "go on"

    def started(self, order: MoveOrdered) -> None:
        """Record that an agent has begun a step of a move."""
        _, report = self._known.get(order.build, {}).get(order.root, (0, None))
        self._put(order.build, order.root, order.step, report)

    def finished(self, outcome: MoveReported) -> None:
        """Record the report about a move order, unless a later order of the build on this host is known."""
        step, _ = self._known.get(outcome.build, {}).get(outcome.root, (0, None))
        if outcome.step >= step:
            self._put(outcome.build, outcome.root, outcome.step, outcome)

    def last(self, build: str, root: str) -> MoveReported | None:
        """Return the report about a build's last move order on a host; None if its phase has not ended, or if
        no order is known.
        """
        step, report = self._known.get(build, {}).get(root, (0, None))
        return report if report is not None and report.step == step else None

    def recall(self, entry: MoveReported) -> None:
        """Restore a stored report after a restart."""
        self.finished(entry)

    def entries(self, build: str) -> Sequence[MoveReported]:
        """Return the reports of a build's moves on this agent, for its file."""
        return [report for _, report in self._known.get(build, {}).values() if report is not None]

    def _put(self, build: str, root: str, step: int, report: MoveReported | None) -> None:
        self._known.setdefault(build, {})[root] = step, report
        self._known.move_to_end(build)
        if len(self._known) > self._remembered:
            self._dropped(self._known.popitem(last=False)[0])
