"""Selects the Ironic nodes that berth manages, and decides each node's cell, agent, zone and aggregates."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from bus.domains import BUILT_IN_LEVELS
from ironic_sync.core.node import FIELDS, IronicNode, Place

DEFAULT_GROUP = "-"  # how the unnamed conductor group is written in settings
AGENT = "{cell}-metal"

_NAMESPACE = uuid.UUID("6e8df4c0-61b3-5f0e-9d5c-6a0c0b1a7f52")
_FIELDS = ("conductor_group", "owner", "lessee", "resource_class", "shard")
_PROPERTIES = ("properties", "extra")
_LONGEST = 255
_LEVEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, kw_only=True)
class NodeSelection:
    """The settings that select nodes, and assign cells, agents, zones and aggregates.

    An empty filter accepts every node. A key is a field of the node, extra.NAME or properties.NAME.
    """

    conductor_groups: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    resource_classes: tuple[str, ...] = ()
    cell_by: str = ""  # the key that selects the cell in `cells`
    cells: Mapping[str, str] = field(default_factory=dict)
    cell: str = ""  # for values that the mapping does not name; empty: such nodes are not selected
    agents: Mapping[str, str] = field(default_factory=dict)  # cell → agent, where it is not `cell`-metal
    zone_by: str = ""
    zone: str = ""  # for nodes without a value there
    aggregates_by: tuple[str, ...] = ()  # keys, or `zone`: nodes with the same value share an aggregate
    labels_by: Mapping[str, str] = field(default_factory=dict)  # level, such as rack → key with its label

    def __post_init__(self) -> None:
        for key in self._keys():
            kind, _, name = key.partition(".")
            if not (key in _FIELDS or (kind in _PROPERTIES and name)):
                known = ", ".join((*_FIELDS, *(f"{kind}.NAME" for kind in _PROPERTIES)))
                raise ValueError(f"{key!r} is not a field to select nodes by; there are: {known}")
        if bool(self.cells) != bool(self.cell_by):
            raise ValueError("a mapping to cells takes a key (cell_by), and a key takes a mapping")
        if not self.cells and not self.cell:
            raise ValueError("no cell is named for any node")
        # Ironic stores conductor group names in lower case.
        lowered = tuple(group.lower() for group in self.conductor_groups)
        object.__setattr__(self, "conductor_groups", lowered)
        for level in self.labels_by:
            if not _LEVEL.fullmatch(level) or level in BUILT_IN_LEVELS:
                raise ValueError(f"{level!r} is no level for labels; a level is a name such as rack or row")
        if self.cell_by == "conductor_group":
            object.__setattr__(self, "cells", {group.lower(): cell for group, cell in self.cells.items()})

    @property
    def only_reads_place(self) -> bool:
        """Return whether a node's place depends on its shard, which only reads of Ironic's API return:
        notifications lack it.
        """
        return bool(self.shards) or "shard" in self._keys()

    def fields(self) -> tuple[str, ...]:
        """Return the fields of nodes to request from Ironic; large fields (properties, extra) only if a
        setting uses them.
        """
        wanted = {key.partition(".")[0] for key in self._keys()}
        left_out = set(_PROPERTIES) - wanted
        return tuple(name for name in FIELDS if name not in left_out)

    def filters(self) -> dict[str, str | tuple[str, ...]]:
        """Return query parameters for Ironic's list of nodes: each field for which exactly one value is
        selected, and the selected shards.
        """
        asked: dict[str, str | tuple[str, ...]] = {}
        if len(self.conductor_groups) == 1:
            group = self.conductor_groups[0]
            asked["conductor_group"] = "" if group == DEFAULT_GROUP else group
        if len(self.owners) == 1:
            asked["owner"] = self.owners[0]
        if len(self.resource_classes) == 1:
            asked["resource_class"] = self.resource_classes[0]
        if self.shards:
            asked["shard"] = self.shards
        return asked

    def all_agents(self) -> tuple[str, ...]:
        """Return the names of all agents to which the settings can assign Ironic nodes."""
        cells = {*self.cells.values(), self.cell} - {""}
        return tuple(sorted({self._agent(cell) for cell in cells}))

    def reason_not_selected(self, node: IronicNode) -> str:
        """Return why berth does not manage an Ironic node, according to the settings; "" if it manages it."""
        for values, attribute, value in (
            (self.conductor_groups, "conductor group", node.conductor_group or DEFAULT_GROUP),
            (self.shards, "shard", node.shard),
            (self.owners, "owner", node.owner),
            (self.resource_classes, "resource class", node.resource_class),
        ):
            if values and value not in values:
                return f"its {attribute}, {value or 'none'}, is not among ours"
        if not self._cell(node):
            return f"no cell is named for its {self.cell_by}, {_value(node, self.cell_by) or 'none'}"
        return ""

    def place(self, node: IronicNode) -> Place | None:
        """Return an Ironic node's cell, agent, zone, aggregates and labels; None if it is not managed."""
        if self.reason_not_selected(node):
            return None
        cell = self._cell(node)
        zone = _value(node, self.zone_by) or self.zone
        groups = ((key, zone if key == "zone" else _value(node, key)) for key in self.aggregates_by)
        return Place(
            cell=cell,
            agent=self._agent(cell),
            zone=zone,
            aggregates=tuple(sorted({aggregate(key, value) for key, value in groups if value})),
            labels={
                level: label for level, key in self.labels_by.items() if (label := _value(node, key).strip())
            },
        )

    def _cell(self, node: IronicNode) -> str:
        value = _value(node, self.cell_by) or DEFAULT_GROUP
        return self.cells.get(value, self.cell)

    def _agent(self, cell: str) -> str:
        return self.agents.get(cell) or AGENT.format(cell=cell)

    def _keys(self) -> set[str]:
        return {self.cell_by, self.zone_by, *self.aggregates_by, *self.labels_by.values()} - {"", "zone"}


@lru_cache(maxsize=10_000)
def aggregate(key: str, value: str) -> str:
    """Return the uuid of the aggregate of all Ironic nodes with this value in the field `key`."""
    return str(uuid.uuid5(_NAMESPACE, f"{key}={value}"))


def _value(node: IronicNode, key: str) -> str:
    kind, _, name = key.partition(".")
    value = getattr(node, kind, None) if not name else getattr(node, kind).get(name)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value).strip()
    return text if len(text) <= _LONGEST and text.isprintable() else ""
