"""Labels of hosts by level (row, rack, switch, ...), and the constraints that refer to them: pack and spread.

The levels `host`, `cell` and `zone` exist without labels: a host's id, its cell and its availability zone.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.requests import Flavor
from bus.vocabulary import (
    END,
    Amount,
    Contended,
    Id,
    Message,
    Missing,
    SmallMap,
    Tagged,
    Text,
    Value,
    Whole,
    Word,
)

Level = Annotated[
    str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}" + END, description="a level, such as rack")
]
LevelOrNone = Annotated[
    str, Meta(pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?" + END, description="a level, or empty")
]
Label = Annotated[str, Meta(max_length=255, pattern=r"^\S(.*\S)?" + END)]
Labels = SmallMap[Level, Label]  # level → the host's label, the name of its domain

HOST, CELL, ZONE = "host", "cell", "zone"
BUILT_IN_LEVELS = (HOST, CELL, ZONE)  # levels that no label may name
METADATA_PREFIX = "topology:"  # an aggregate's metadata `topology:rack` is the rack label of its hosts

Strength = Literal["required", "preferred"]


class HostLabels(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The labels of one host by source. For each level, the first source with a label decides: `of_operator`,
    then `reported` (by the agent), metadata of the host's aggregates, and `of_fields` (of the Ironic node).
    """

    of_operator: Labels = field(default_factory=dict)
    reported: Labels = field(default_factory=dict)  # reported by the host's agent
    of_fields: Labels = field(default_factory=dict)  # derived from the fields of the Ironic node


NO_LABELS = HostLabels()


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


class GangRole(Value, frozen=True, kw_only=True):
    """A part of a gang: a number of instances of one flavor. All roles of a request are claimed together."""

    name: Word
    flavor: Flavor
    count: Amount = 1


class LabelEditRequested(Message, frozen=True, kw_only=True):
    """Set or remove labels that an operator gives to hosts, in addition to what their agents report."""

    roots: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=500)]
    set: Labels = field(default_factory=dict)
    unset: Annotated[tuple[Level, ...], Meta(max_length=100)] = ()
    # A host outside of this cell counts as missing; empty: hosts of all cells.
    cell: Text = ""


class LabelsEdited(Tagged, frozen=True, kw_only=True):
    changed: Whole  # hosts with changed labels
    number: Whole = 0  # change number; 0: nothing changed


class LevelReserved(Tagged, frozen=True, kw_only=True):
    """The refusal to label a host by a level that exists without labels: host, cell or zone."""

    level: Level


LabelEditResult = LabelsEdited | Missing | LevelReserved | Contended


class LabelEditAnswered(Message, frozen=True, kw_only=True):
    result: LabelEditResult
