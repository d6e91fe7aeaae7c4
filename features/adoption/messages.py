"""The part of adoption in claims."""

from typing import ClassVar

from bus.parts import ClaimParts, Part


class Adopts(Part, frozen=True, kw_only=True):
    """An operator adopts the guest of the consumer, although the consumer was retired as unplaceable."""

    revives: ClassVar = True


PARTS = {ClaimParts: Adopts}
