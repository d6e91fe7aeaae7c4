"""Prepares the page of bare-metal nodes: their states, and why builds cannot claim them."""

from collections.abc import Sequence
from dataclasses import dataclass

from control_room.core.words import duration


@dataclass(frozen=True, kw_only=True)
class IronicState:
    """The state that a bare-metal node had in Ironic when it was read."""

    state: str
    target: str = ""
    power: str = ""  # empty: unknown
    maintenance: bool = False
    why: str = ""  # reason of the maintenance, or the last error
    instance: str = ""
    resource_class: str = ""


@dataclass(frozen=True, kw_only=True)
class PlacementRecord:
    """The provider of a bare-metal node, as placement has recorded it."""

    closed: bool  # the inventory is missing or completely reserved
    updated: float  # when placement's record was made; 0: unknown
    used: bool = False
    holder: str = ""  # the consumer with its allocations; empty: none, or not queried
    marks: tuple[str, ...] = ()  # descriptions of an operator's marks: disabled, forced down
    cell: str = ""
    agent: str = ""


@dataclass(frozen=True, kw_only=True)
class BoardNode:
    id: str
    name: str = ""
    ironic: IronicState | None = None  # None: not read, or deleted in Ironic
    placement_record: PlacementRecord | None = None  # None: placement has no record
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetalNodes:
    """All bare-metal nodes, as they were last read from Ironic and from placement."""

    at: float
    nodes: tuple[BoardNode, ...] = ()
    reads_ironic: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeShown:
    node: BoardNode
    column: str
    berth: str  # placement's state as text
    age: float | None  # seconds since placement's record was made
    obstacles: tuple[str, ...]  # what prevents a claim


COLUMNS = (
    ("free", "Free", "can be claimed now"),
    ("closed", "Closed", "free in Ironic, but not claimable"),
    ("held", "Held", "claimed, not deployed yet"),
    ("deploying", "Being deployed", ""),
    ("in use", "In use", ""),
    ("at work", "At work", "cleaned, deleted, inspected, rescued"),
    ("maintenance", "In maintenance", ""),
    ("failed", "Failed", "Ironic waits for an operator"),
    ("not ready", "Not ready", "enrolled or manageable, not offered"),
    ("gone", "Gone", "in placement, not in Ironic"),
)
_DEPLOYING = {"deploying", "wait call-back", "deploy hold"}
_IN_USE = {"active", "rescue", "service hold"}
_NOT_READY = {"enroll", "manageable"}


def shown(node: BoardNode, reads_ironic: bool, now: float) -> NodeShown:
    record = node.placement_record
    state = "does not have it"
    if record is not None:
        state = "held" if record.used else "closed" if record.closed or record.marks else "open"
    return NodeShown(
        node=node,
        column=_column(node, reads_ironic),
        berth=", ".join((state, *(record.marks if record else ()))),
        age=max(0.0, now - record.updated) if record and record.updated else None,
        obstacles=_obstacles(node, reads_ironic, now),
    )


def _column(node: BoardNode, reads_ironic: bool) -> str:
    ironic, record = node.ironic, node.placement_record
    used = record is not None and record.used
    if ironic is None:
        if reads_ironic:
            return "gone"
        return "held" if used else "free" if not _obstacles(node, False, 0.0) else "closed"
    state = ironic.state
    if ironic.maintenance:
        return "maintenance"
    if state.endswith("failed") or state == "error":
        return "failed"
    if state in _DEPLOYING:
        return "deploying"
    if state in _IN_USE:
        return "in use"
    if state in _NOT_READY:
        return "not ready"
    if state != "available":
        return "at work"
    if ironic.power in ("", "error"):  # unknown for a node that was just enrolled
        return "failed"
    if used:
        return "held"
    return "closed" if _obstacles(node, True, 0.0) else "free"


def _obstacles(node: BoardNode, reads_ironic: bool, now: float) -> tuple[str, ...]:
    obstacles = []
    ironic, record = node.ironic, node.placement_record
    if ironic is not None:
        if ironic.maintenance:
            obstacles.append(f"it is in maintenance{f': {ironic.why}' if ironic.why else ''}")
        if ironic.power == "error":
            obstacles.append("its power cannot be controlled")
        elif not ironic.power:
            obstacles.append("its power state is not known")
        if ironic.state != "available":
            error = f": {ironic.why}" if ironic.why and not ironic.maintenance else ""
            obstacles.append(f"Ironic has it {ironic.state}{error}")
        if ironic.instance:
            obstacles.append(f"Ironic has instance {ironic.instance} on it")
        if not ironic.resource_class:
            obstacles.append("it has no resource class")
    elif reads_ironic:
        obstacles.append("Ironic does not have it any more")
    if record is None:
        obstacles.append("placement does not have it")
        return tuple(obstacles)
    if record.used and not (ironic is not None and record.holder and ironic.instance == record.holder):
        obstacles.append(f"{record.holder or 'a consumer'} holds it")
    obstacles += record.marks
    if record.closed and not record.used and not obstacles:
        since = f" {duration(now - record.updated)} ago" if record.updated and now else ""
        obstacles.append(f"placement received{since} that nothing can be deployed on it")
    return tuple(obstacles)


@dataclass(frozen=True)
class BoardColumn:
    key: str
    title: str
    means: str
    count: int
    nodes: Sequence[NodeShown]  # the first nodes of the column


def board(
    nodes: MetalNodes, now: float, wanted: str = "", column: str = "", most: int = 40
) -> list[BoardColumn]:
    """Return bare-metal nodes in columns by state, at most `most` in each; only one column if `column` names
    it. Nodes on which Ironic and placement differ come first.

    `wanted`, if not empty, is a text that a node must have in its id, name, state, resource class, instance,
    cell, agent or consumer.
    """
    by_column: dict[str, list[NodeShown]] = {}
    for node in sorted(nodes.nodes, key=lambda node: (not node.differs, node.name or node.id)):
        if not wanted or _matches(node, wanted.lower()):
            row = shown(node, nodes.reads_ironic, now)
            by_column.setdefault(row.column, []).append(row)
    return [
        BoardColumn(key, title, means, len(by_column[key]), by_column[key][:most])
        for key, title, means in COLUMNS
        if key in by_column and column in ("", key)
    ]


def _matches(node: BoardNode, wanted: str) -> bool:
    ironic, record = node.ironic, node.placement_record
    texts = [node.id, node.name]
    texts += [ironic.state, ironic.resource_class, ironic.instance] if ironic else []
    texts += [record.cell, record.agent, record.holder] if record else []
    return any(wanted in text.lower() for text in texts)
