"""Decides guests' states during moves, and which move orders are outdated.

prepare   no guest → arriving, and devices are reserved for the guest
send      running → stopped: immediately or, in a live migration, when the copy is complete
start     arriving → running
resume    the guest on the source host gets a new attempt number and runs again
rebuild   the guest runs until its successor replaces it under a new attempt number
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from msgspec.structs import asdict

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


class MovePhaseReported(MoveReported, frozen=True, tag=True, array_like=True):
    """An entry in an agent's file of guests: a phase of a move has ended with this outcome."""


class MoveSteps:
    """Remembers the last move order of each build on each host, with the report of its outcome."""

    entry: ClassVar[type[MovePhaseReported]] = MovePhaseReported

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

    def started(self, order: MoveOrdered) -> None:
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

    def recall(self, entry: MovePhaseReported) -> None:
        self.finished(MoveReported(**asdict(entry)))

    def entries(self) -> Iterable[MovePhaseReported]:
        return map(entry_of, self.known())

    def _put(self, build: str, root: str, step: int, report: MoveReported | None) -> None:
        self._known.setdefault(build, {})[root] = step, report
        self._known.move_to_end(build)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)


def entry_of(report: MoveReported) -> MovePhaseReported:
    return MovePhaseReported(**asdict(report))
