"""What becomes of a guest by each phase of a move, however that ends; and which orders are too late.

prepare   there is none → arriving, and its devices are held
send      running → stopped: at once; of a live migration, when all is copied
start     arriving → running
resume    the source's guest gets another attempt's name, and runs again
rebuild   the guest runs on until its successor takes its place, and its name
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Literal

from bus.moves import MoveOrdered, MoveReported

GuestState = Literal["arriving", "running", "stopped"]
PhaseEnd = Literal["done", "failed", "hung", "lost"]  # lost: the power failed meanwhile

REMEMBERED = 100_000  # builds


def refusal(order: MoveOrdered, here: Mapping[int, GuestState]) -> str:
    """Why this cannot be begun with what is here of the build, by attempts; empty where it can."""
    match order.phase:
        case "prepare":
            return ""
        case "send" | "start" if order.attempt not in here:
            return f"there is no guest of attempt {order.attempt} here"
        case "send" if here[order.attempt] == "arriving":
            return f"the guest of attempt {order.attempt} has never run here"
        case "resume" | "rebuild" if order.attempt not in here and order.was not in here:
            return f"there is no guest of attempt {order.was} here"
    theirs = (order.attempt, order.was)
    others = [attempt for attempt, state in here.items() if state == "running" and attempt not in theirs]
    if order.phase in ("start", "resume") and others:
        return f"its guest of attempt {others[0]} runs here"
    return ""


def meanwhile(order: MoveOrdered, state: GuestState) -> GuestState:
    """What the guest is while this is being done with it."""
    return "stopped" if order.phase == "send" and order.kind != "live" else state


def afterwards(order: MoveOrdered, state: GuestState, end: PhaseEnd) -> GuestState | None:
    """What it is then; None: nothing is left of it."""
    match order.phase, end:
        case "start" | "resume" | "rebuild", "done":
            return "running"
        case "send", "done":
            return "stopped"
        case "send", "failed" | "hung":  # it runs on where it is, or again
            return "running"
        case "prepare" | "start", "failed":
            return None
        case _:
            return state


class MoveSteps:
    """Of every build, on each host: the last order of its moves, and what came of it."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._known: OrderedDict[str, dict[str, tuple[int, MoveReported | None]]] = OrderedDict()

    def ordered(self, order: MoveOrdered) -> MoveReported | Literal["go on", "void"]:
        """Begin it, or go on with it; or say, again, how it went; or it is older than what is known."""
        step, said = self._known.get(order.build, {}).get(order.root, (0, None))
        if order.step < step:
            return "void"
        return said if said is not None and order.step == step else "go on"

    def begun(self, order: MoveOrdered) -> None:
        self._put(order.build, order.root, order.step, None)

    def finished(self, said: MoveReported) -> None:
        """As it was said, or is known from before."""
        step, _ = self._known.get(said.build, {}).get(said.root, (0, None))
        if said.step >= step:
            self._put(said.build, said.root, said.step, said)

    def last(self, build: str, root: str) -> MoveReported | None:
        """What was said last of this build there, if its phase is over."""
        return self._known.get(build, {}).get(root, (0, None))[1]

    def known(self) -> Iterable[MoveReported]:
        return [said for on in self._known.values() for _, said in on.values() if said is not None]

    def _put(self, build: str, root: str, step: int, said: MoveReported | None) -> None:
        self._known.setdefault(build, {})[root] = step, said
        self._known.move_to_end(build)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)
