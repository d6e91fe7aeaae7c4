"""Prepares the page of bare-metal nodes: their states, and why builds cannot claim them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import structs

from bus.domains import WHY_CLOSED, Closed
from bus.stuck_nodes import StuckNode, stuck_node
from control_room.kit.words import duration


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
    retired: bool = False
    protected: bool = False

    @property
    def text(self) -> str:
        """Return a text such as `deploying → active, power on, protected`."""
        state = f"{self.state} → {self.target}" if self.target else self.state
        marks = {"in maintenance": self.maintenance, "retired": self.retired, "protected": self.protected}
        return ", ".join(
            (state, self.power or "power not known", *(name for name, is_ in marks.items() if is_))
        )


@dataclass(frozen=True, kw_only=True)
class PlacementRecord:
    """The provider of a bare-metal node, as placement has recorded it."""

    inventory: Literal["free", "reserved", "none"]
    closed: Closed = ""  # why the last report offers nothing
    resource_class: str = ""  # the reported class
    updated: float = 0.0  # when placement's record was made; 0: unknown
    used: bool = False
    holders: tuple[str, ...] = ()  # the consumers with its allocations; empty: none, or not queried
    marks: tuple[str, ...] = ()  # descriptions of an operator's marks: disabled, forced down
    cell: str = ""
    agent: str = ""

    @property
    def is_held(self) -> bool:
        """Return whether a consumer has an allocation of the node."""
        return self.used or bool(self.holders)

    @property
    def is_offered(self) -> bool:
        """Return whether placement offers the node to builds, whatever Ironic says about it."""
        return self.inventory == "free" and not self.is_held and not self.marks


@dataclass(frozen=True, kw_only=True)
class BoardNode:
    """A node with its state in Ironic and its record in placement."""

    id: str
    name: str = ""
    ironic: IronicState | None = None  # None: never read, or deleted in Ironic when it was read
    read: float = 0.0  # when the node was read from Ironic; 0: never
    placement_record: PlacementRecord | None = None  # None: placement has no record
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetalNodes:
    """All bare-metal nodes, as they were last read from Ironic and from placement."""

    at: float  # when placement was read; 0: never
    nodes: tuple[BoardNode, ...] = ()
    reads_ironic: bool = False  # Ironic's API is configured
    ironic_problem: str = ""  # why Ironic's API did not answer
    placement_problem: str = ""

    @property
    def oldest(self) -> float:
        """Return when the node with the oldest answer of Ironic was read; 0 if Ironic has never answered."""
        return min((node.read for node in self.nodes if node.read), default=0.0)

    @property
    def is_complete(self) -> bool:
        """Return whether both Ironic and placement have answered."""
        return not (self.ironic_problem or self.placement_problem)

    def stuck(self, now: float) -> list[StuckNode]:
        """Return the stuck nodes, the longest stuck one first."""
        found = filter(None, (_stuck(node, now) for node in self.nodes))
        return sorted(found, key=lambda node: (node.since, node.name))


def completed(now: MetalNodes, before: MetalNodes) -> MetalNodes:
    """Return the nodes `now`, with the answer in `before` of a service that did not answer this time."""
    if now.placement_problem:
        return replace(
            before,
            reads_ironic=now.reads_ironic,
            ironic_problem=now.ironic_problem,
            placement_problem=now.placement_problem,
        )
    if not now.ironic_problem:
        return now
    known = {node.id: node for node in before.nodes if node.read}
    nodes = [_with_answer(node, known.pop(node.id, None)) for node in now.nodes]
    unplaced = [replace(node, placement_record=None, differs=()) for node in known.values() if node.ironic]
    return replace(now, nodes=(*nodes, *unplaced))


def _with_answer(node: BoardNode, before: BoardNode | None) -> BoardNode:
    if node.read or before is None:
        return node
    return replace(node, name=before.name or node.name, ironic=before.ironic, read=before.read)


@dataclass(frozen=True, kw_only=True)
class NodeShown:
    """A node as the page shows it."""

    node: BoardNode
    column: str
    berth: str  # placement's state as text
    age: float | None  # seconds since placement's record was made
    ironic_age: float | None  # seconds since Ironic's answer, if it is older than that of placement
    obstacles: tuple[str, ...]  # what prevents a claim, or should prevent it if the node is offered
    is_offered: bool
    stuck: StuckNode | None

    @property
    def resource_class(self) -> str:
        """The class of the node in Ironic, and what placement calls it; "" if unknown."""
        ironic, record = self.node.ironic, self.node.placement_record
        placed = record.resource_class if record else ""
        if ironic is None or not ironic.resource_class:
            return placed
        return f"{ironic.resource_class}, in placement {placed}" if placed else ironic.resource_class


COLUMNS = (
    ("free", "Free", "builds can claim it now"),
    ("closed", "Closed", "available in Ironic, but berth does not offer it"),
    ("held", "Held", "claimed, not deployed yet"),
    ("claimed", "Claimed", "whether it is deployed is known only to Ironic"),
    ("deploying", "Being deployed", ""),
    ("in use", "In use", ""),
    ("at work", "At work", "cleaned, deleted, inspected, rescued, serviced"),
    ("maintenance", "In maintenance", ""),
    ("failed", "Failed", "Ironic waits for an operator"),
    ("not ready", "Not ready", "enrolled or manageable, not offered"),
    (
        "unavailable",
        "Not available",
        "the reason is known only to Ironic: cleaning, maintenance, failure, ...",
    ),
    ("gone", "Gone", "in placement, not in Ironic"),
)
# Ironic's provision state → heading. All other states are transitions and holds: "at work".
_HEADINGS = {
    "enroll": "not ready", "manageable": "not ready",
    "deploying": "deploying", "wait call-back": "deploying", "deploy hold": "deploying",
    "active": "in use", "rescue": "in use", "error": "failed",
    **{f"{work} failed": "failed" for work in (
        "inspect", "adopt", "clean", "deploy", "rescue", "unrescue", "service",
    )},
}  # fmt: skip


# Ironic waits for an operator in these provision states.
FAILED_STATES = tuple([state for state, heading in _HEADINGS.items() if heading == "failed"])


# Why placement's record offers nothing → heading of a node that was never read from Ironic.
_HEADINGS_OF_REASONS: dict[Closed, str] = {
    "maintenance": "maintenance", "power": "failed", "failed": "failed", "in use": "in use",
    "cleaning": "at work",
}  # fmt: skip


def heading(ironic: IronicState | None, record: PlacementRecord | None, *, is_read: bool) -> str:
    """Return the key of the heading (`COLUMNS`) under which a node is shown.

    `is_read` says whether the node was read from Ironic, now or earlier. Ironic's state then decides, and for
    an available node also placement's inventory and holders; `ironic` is None if Ironic has deleted the node.
    Of a node that was never read only placement's record is known.
    """
    is_held = record is not None and record.is_held
    is_offered = record is not None and record.is_offered
    if not is_read:
        if is_held:
            return "claimed"
        if record is not None and record.inventory == "free":
            return "free" if is_offered else "closed"
        return _HEADINGS_OF_REASONS.get(record.closed, "unavailable") if record else "unavailable"
    if ironic is None:
        return "gone"
    if ironic.maintenance:
        return "maintenance"
    if ironic.state != "available":
        return _HEADINGS.get(ironic.state, "at work")
    if ironic.power in ("", "error"):  # unknown for a node that was just enrolled
        return "failed"
    if is_held or ironic.instance:
        return "held"
    return "free" if is_offered else "closed"


def shown(node: BoardNode, nodes: MetalNodes, now: float) -> NodeShown:
    """Return a node as the page shows it."""
    record = node.placement_record
    state = "does not have it"
    if record is not None:
        state = "held" if record.is_held else "open" if record.is_offered else "closed"
    is_stale = 0 < node.read < nodes.at or (node.read > 0 and bool(nodes.placement_problem))
    return NodeShown(
        node=node,
        column=heading(node.ironic, record, is_read=node.read > 0),
        berth=", ".join((state, *(record.marks if record else ()))),
        age=max(0.0, now - record.updated) if record and record.updated else None,
        ironic_age=max(0.0, now - node.read) if is_stale else None,
        obstacles=(*_obstacles_in_ironic(node), *_obstacles_in_placement(node, now)),
        is_offered=record is not None and record.is_offered,
        stuck=_stuck(node, now),
    )


def _stuck(node: BoardNode, now: float) -> StuckNode | None:
    """Return a node with the reason if it is stuck, according to the reports to placement. What Ironic has
    answered about the node adds its last error.
    """
    record, ironic = node.placement_record, node.ironic
    if record is None or (node.read and (ironic is None or heading(ironic, record, is_read=True) == "free")):
        return None
    found = stuck_node(
        node.id, node.name, record.cell, record.closed, record.updated, now, is_held=record.is_held
    )
    return (
        structs.replace(found, why=f"{found.why}: {ironic.why}") if found and ironic and ironic.why else found
    )


def _obstacles_in_ironic(node: BoardNode) -> Iterator[str]:
    ironic = node.ironic
    if ironic is None:
        if node.read:
            yield "Ironic does not have it any more"
        return
    if ironic.maintenance:
        yield f"it is in maintenance{f': {ironic.why}' if ironic.why else ''}"
    if ironic.power == "error":
        yield "its power cannot be controlled"
    elif not ironic.power:
        yield "its power state is not known"
    if ironic.state != "available":
        error = f": {ironic.why}" if ironic.why and not ironic.maintenance else ""
        yield f"Ironic has it {ironic.state}{error}"
    if ironic.instance:
        yield f"Ironic has instance {ironic.instance} on it"
    if not ironic.resource_class:
        yield "it has no resource class"


def _obstacles_in_placement(node: BoardNode, now: float) -> Iterator[str]:
    record, ironic = node.placement_record, node.ironic
    if record is None:
        yield "placement does not have it"
        return
    is_expected = ironic is not None and record.holders == (ironic.instance,)
    if record.is_held and not is_expected:
        holders = record.holders or ("a consumer",)
        yield f"{' and '.join(holders)} {'hold' if len(holders) > 1 else 'holds'} it"
    yield from record.marks
    if record.inventory == "none":
        yield "placement has no inventory of it"
    elif record.inventory == "reserved" and not record.is_held and not any(_obstacles_in_ironic(node)):
        since = f" {duration(now - record.updated)} ago" if record.updated else ""
        why = f": {WHY_CLOSED[record.closed]}" if record.closed else ""
        yield f"placement received{since} that nothing can be deployed on it{why}"


@dataclass(frozen=True)
class BoardColumn:
    """A column of the board, for the nodes in one state."""

    key: str
    title: str
    means: str
    count: int
    nodes: Sequence[NodeShown]  # the first nodes of the column


def board(
    nodes: MetalNodes, now: float, wanted: str = "", column: str = "", most: int = 40
) -> list[BoardColumn]:
    """Return bare-metal nodes in columns by state, at most `most` in each; only one column if `column` names
    it. Stuck nodes, and nodes on which Ironic and placement differ, come first.

    `wanted`, if not empty, is a text that a node must have in its id, name, state, resource class, instance,
    cell, agent or consumer.
    """
    by_column: dict[str, list[NodeShown]] = {}
    rows = [shown(node, nodes, now) for node in nodes.nodes if not wanted or _matches(node, wanted.lower())]
    for row in sorted(rows, key=_first):
        by_column.setdefault(row.column, []).append(row)
    return [
        BoardColumn(key, title, means, len(by_column[key]), by_column[key][:most])
        for key, title, means in COLUMNS
        if key in by_column and column in ("", key)
    ]


def _first(row: NodeShown) -> tuple[bool, bool, str]:
    return row.stuck is None, not row.node.differs, row.node.name or row.node.id


def _matches(node: BoardNode, wanted: str) -> bool:
    ironic, record = node.ironic, node.placement_record
    texts = [node.id, node.name]
    texts += [ironic.state, ironic.resource_class, ironic.instance] if ironic else []
    texts += [record.cell, record.agent, *record.holders] if record else []
    return any(wanted in text.lower() for text in texts)
