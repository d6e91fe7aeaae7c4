"""The victims of preemption as parts of claims, and of messages about placed instances."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from bus.claims import ConsumerClaim
from bus.messages import BuildPlaced
from features.preemption.messages import Preempts, Victim, Victims
from scheduler_worker.extension import ClaimPart


@dataclass(frozen=True, slots=True)
class Replaces:
    """The instances that an instance preempts on its host."""

    victims: tuple[Victim, ...]
    cell: str = ""
    priority: int = 0
    budget: int = 0  # most instances that the project may preempt in one hour; 0: any number

    def in_claim(self, claim: ConsumerClaim, parts: Sequence[ClaimPart]) -> ConsumerClaim:
        if not self.victims:
            return claim
        together = {victim.build for part in parts if isinstance(part, Replaces) for victim in part.victims}
        preempts = Preempts(
            victims=self.victims,
            cell=self.cell,
            priority=self.priority,
            budget=self.budget,
            together=len(together),
        )
        return structs.replace(claim, parts=claim.parts.having(preempts))

    def in_placed(self, placed: BuildPlaced) -> BuildPlaced:
        if not self.victims:
            return placed
        return structs.replace(placed, parts=placed.parts.having(Victims(preempts=self.victims)))
