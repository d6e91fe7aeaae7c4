"""Labels of hosts by level (row, rack, switch, ...).

The levels `host`, `cell` and `zone` exist without labels: a host's id, its cell and its availability zone.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.vocabulary import END, FREE, Contended, Id, Message, Missing, SmallMap, Tagged, Text, Value, Whole

Level = Annotated[
    str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}" + END, description="a level, such as rack")
]
LevelOrNone = Annotated[
    str, Meta(pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?" + END, description="a level, or empty"), FREE
]
Label = Annotated[
    str, Meta(max_length=255, pattern=r"^\S(.*\S)?" + END, description="a text without spaces at its ends")
]
Labels = SmallMap[Level, Label]  # level → the host's label, the name of its domain

HOST, CELL, ZONE = "host", "cell", "zone"
BUILT_IN_LEVELS = (HOST, CELL, ZONE)  # levels that no label may name
METADATA_PREFIX = "topology:"  # an aggregate's metadata `topology:rack` is the rack label of its hosts


Closed = Literal["", "maintenance", "power", "failed", "in use", "cleaning", "not available", "no class"]
WHY_CLOSED: dict[Closed, str] = {
    "maintenance": "the node is in maintenance",
    "power": "Ironic does not know its power state",
    "failed": "an operation of Ironic on it has failed",
    "in use": "Ironic has an instance on it",
    "cleaning": "Ironic is cleaning it",
    "not available": "Ironic has not made it available",
    "no class": "it has no resource class in Ironic",
}


class HostLabels(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The labels of one host by source. For each level, the first source with a label decides: `of_operator`,
    then `reported` (by the agent), metadata of the host's aggregates, and `of_fields` (of the Ironic node).
    """

    of_operator: Labels = field(default_factory=dict)
    reported: Labels = field(default_factory=dict)  # reported by the host's agent
    of_fields: Labels = field(default_factory=dict)  # derived from the fields of the Ironic node
    closed: Closed = ""  # no label: why the host's last report offers nothing


NO_LABELS = HostLabels()


class LabelEditRequested(Message, frozen=True, kw_only=True):
    """Set or remove labels that an operator gives to hosts, in addition to what their agents report."""

    roots: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=500)]
    set: Labels = field(default_factory=dict)
    unset: Annotated[tuple[Level, ...], Meta(max_length=100)] = ()
    # A host outside of this cell counts as missing; empty: hosts of all cells.
    cell: Text = ""


class LabelsEdited(Tagged, frozen=True, kw_only=True):
    """The answer to an edit of the labels of hosts that has succeeded."""

    changed: Whole  # hosts with changed labels
    number: Whole = 0  # change number; 0: nothing changed


class LevelReserved(Tagged, frozen=True, kw_only=True):
    """The refusal to label a host by a level that exists without labels: host, cell or zone."""

    level: Level


LabelEditResult = LabelsEdited | Missing | LevelReserved | Contended


class LabelEditAnswered(Message, frozen=True, kw_only=True):
    result: LabelEditResult
