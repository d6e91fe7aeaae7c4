"""Explains why a request waits, or has expired."""

from msgspec import structs

from bus.decisions import Decision
from bus.vocabulary import MAX_CAUSE
from scheduler_worker.core import events
from scheduler_worker.core.order import Order, Verdict
from scheduler_worker.store.parked import ParkedRequest


def expired_order(order: Order, entry: ParkedRequest, last: events.Park) -> Order:
    """Return the order of an expired waiting request as failed; the reason names the missing capacity."""
    explained = last.shorts or last.refusal
    lacks = last.why if explained else entry.lacks
    decision = decision_of(last) if explained else entry.decision
    decision = structs.replace(decision, code="waited")
    verdict = Verdict(reason=waited_for(entry, lacks), decision=decision, lacks_remedies=True)
    return structs.replace(order, verdict=verdict)


def waited_for(entry: ParkedRequest, lacks: str) -> str:
    return f"it has waited {entry.message.wait}, the longest that it requested: {lacks}"[:MAX_CAUSE]


def decision_of(end: events.Park) -> Decision:
    if end.shorts:
        return end.shorts[0].decision(())
    return Decision(code=end.refusal.code if end.refusal else "refused")


def wakes_of(end: events.Park) -> str:
    """Return the key of the commits that may let the order's claim succeed; "" if it lacks hosts."""
    return end.refusal.wakes_on if end.refusal else ""
