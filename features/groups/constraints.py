"""Constraints on the domains of several instances, such as their racks: pack and spread."""

from typing import Literal

from bus.domains import LevelOrNone
from bus.vocabulary import Amount, Value

Strength = Literal["required", "preferred"]


class DomainConstraints(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The constraints on the domains of several instances: pack them into one domain of a level, spread them
    over the domains of a level, or both, such as: one row, and at most two in each rack.

    A required constraint is checked in each claim; a host without a label of its level is then not chosen. A
    preferred constraint influences the choice only.
    """

    pack: LevelOrNone = ""
    pack_strength: Strength = "required"
    spread: LevelOrNone = ""
    max_per_domain: Amount = 1  # maximum number of instances in one domain of the level `spread`
    spread_strength: Strength = "required"

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of labels that the constraints name, without repetitions."""
        return tuple(dict.fromkeys(level for level in (self.pack, self.spread) if level))

    @property
    def required_pack(self) -> str:
        """Return the level at which a claim must pack all instances into one domain; "" if packing is not
        required.
        """
        return self.pack if self.pack_strength == "required" else ""

    @property
    def required_spread(self) -> str:
        """Return the level at which claims must spread instances over its domains; "" if spreading is not
        required.
        """
        return self.spread if self.spread_strength == "required" else ""

    @property
    def is_required(self) -> bool:
        """Return whether a constraint must be kept, and is not only preferred."""
        return bool(self.required_pack or self.required_spread)

    def __str__(self) -> str:
        """Return the constraints in words, such as `pack rack, spread host:1 (preferred)`."""
        parts = []
        if self.pack:
            parts.append(f"pack {self.pack}" + (" (preferred)" if not self.required_pack else ""))
        if self.spread:
            weak = "" if self.required_spread else " (preferred)"
            parts.append(f"spread {self.spread}:{self.max_per_domain}{weak}")
        return ", ".join(parts)


NO_TOPOLOGY = DomainConstraints()
