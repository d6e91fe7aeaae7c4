"""Decides whether an exchange of two instances has ended, or how it is undone if its client has stopped.

first move ── failed ─────────────────────────────────────────→ forget: nothing has changed
    └─ done ── second move ── done ───────────────────────────→ forget: the exchange is complete
                   ├── not requested in time: its id is fenced
                   └── failed ── undo of the first move ── done, failed ──→ forget
"""

from typing import Literal

# unknown: not requested, or its request is still in a queue; failed: refused, or ended without effect
MoveResult = Literal["unknown", "in progress", "done", "failed"]
ExchangeAct = Literal["wait", "fence first", "fence second", "undo", "forget"]


def next_act(first: MoveResult, second: MoveResult, undo: MoveResult, *, overdue: bool) -> ExchangeAct:
    """Return the next act for a stored exchange. `overdue`: the client had enough time to request the next
    move. A fenced move id is refused by placement, so a move that is requested later has no effect.
    """
    if first == "unknown":
        return "fence first" if overdue else "wait"
    if first != "done":
        return "forget" if first == "failed" else "wait"
    if second == "unknown":
        return "fence second" if overdue else "wait"
    if second != "failed":
        return "forget" if second == "done" else "wait"
    if undo == "unknown":
        return "undo"
    return "wait" if undo == "in progress" else "forget"
