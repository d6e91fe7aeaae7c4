"""Explains why a request waits, or has expired."""

from msgspec import Struct, structs

from bus.claims import RuleRefused
from bus.decisions import Decision
from bus.vocabulary import cause_of
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import Order, Shortage, Verdict


class Waits(Struct, frozen=True, gc=False):
    """The reason why a request waits, as its last search shows it."""

    shortages: tuple[Shortage, ...]  # for each alternative, why no host fits it
    why: str
    refusal: RuleRefused | None = None  # the refusal of its claim, if a commit may let the claim succeed

    @property
    def wakes_on(self) -> str:
        """Return the key of the commits that may let the order's claim succeed; "" if it lacks hosts."""
        return self.refusal.wakes_on if self.refusal else ""

    @property
    def is_explained(self) -> bool:
        """Return False if only claims were refused, for reasons that the index may not show yet."""
        return bool(self.shortages or self.refusal)


def waits_of(order: Order) -> Waits:
    """Return what an order without a host lacks."""
    verdict = order.verdict
    if verdict.refusal is not None:
        return Waits((), verdict.refusal.why, verdict.refusal)
    return Waits(verdict.shortages, verdict.obstacle)


def expired_order(order: Order, entry: QueuedRequest, last: Waits) -> Order:
    """Return the order of an expired waiting request as failed; the reason names the missing capacity."""
    lacks = last.why if last.is_explained else entry.lacks
    decision = decision_of(last) if last.is_explained else entry.decision
    decision = structs.replace(decision, code="waited")
    verdict = Verdict(reason=waited_for(entry, lacks), decision=decision, lacks_remedies=True)
    return structs.replace(order, verdict=verdict)


def waited_for(entry: QueuedRequest, lacks: str) -> str:
    """Return the reason for a request whose time to wait has passed."""
    longest = entry.message.parts.waits.longest
    return cause_of(f"it has waited {longest}, the longest that it requested: {lacks}")


def decision_of(waits: Waits) -> Decision:
    """Return the decision about the first alternative, or about the refusal."""
    if waits.shortages:
        return waits.shortages[0].decision(())
    return Decision(code=waits.refusal.code if waits.refusal else "refused")
