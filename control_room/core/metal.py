"""Bare-metal nodes as a board: Ironic's state of each, placement's record of it, and why it cannot be
claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control_room.core.words import duration


@dataclass(frozen=True, kw_only=True)
class IronicWord:
    """Ironic's state of a node when it was read."""

    state: str
    target: str = ""
    power: str = ""  # empty: it is not known
    maintenance: bool = False
    why: str = ""  # of the maintenance, or the last error
    instance: str = ""
    resource_class: str = ""


@dataclass(frozen=True, kw_only=True)
class BerthBelief:
    """Placement's record of a node."""

    closed: bool  # all of it is reserved, or it has nothing
    told: float  # when placement's record was made; 0: unknown
    classes: tuple[str, ...] = ()
    used: bool = False
    holder: str = ""  # the consumer; empty if free, or not asked for
    marks: tuple[str, ...] = ()  # an operator's, in words
    cell: str = ""
    agent: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeOnBoard:
    id: str
    name: str = ""
    ironic: IronicWord | None = None  # None: not read, or deleted in Ironic
    belief: BerthBelief | None = None  # None: placement has no record
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetalSeen:
    """All nodes, as they were read."""

    at: float
    nodes: tuple[NodeOnBoard, ...] = ()
    reads_ironic: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeShown:
    node: NodeOnBoard
    column: str
    berth: str  # what it believes, in words
    age: float | None  # of that
    keeps: tuple[str, ...]  # from being claimed; empty: nothing does


COLUMNS = (
    ("free", "Free", "can be claimed now"),
    ("closed", "Closed", "free by Ironic, and yet it is not to be had"),
    ("held", "Held", "somebody holds it, and it is not deployed yet"),
    ("deploying", "Being deployed", ""),
    ("in use", "In use", ""),
    ("at work", "At work", "cleaned, deleted, inspected, rescued"),
    ("maintenance", "In maintenance", ""),
    ("failed", "Failed", "Ironic waits for somebody"),
    ("not ready", "Not ready", "enrolled or manageable, not offered"),
    ("gone", "Gone", "placement has it, and Ironic does not"),
)
_DEPLOYING = {"deploying", "wait call-back", "deploy hold"}
_IN_USE = {"active", "rescue", "service hold"}
_NOT_READY = {"enroll", "manageable"}


def shown(node: NodeOnBoard, reads_ironic: bool, now: float) -> NodeShown:
    belief = node.belief
    return NodeShown(
        node=node,
        column=_column(node, reads_ironic),
        berth=_believed(belief),
        age=max(0.0, now - belief.told) if belief and belief.told else None,
        keeps=_keeps(node, reads_ironic, now),
    )


def _column(node: NodeOnBoard, reads_ironic: bool) -> str:
    said, belief = node.ironic, node.belief
    used = belief is not None and belief.used
    if said is None:
        if reads_ironic:
            return "gone"
        return "held" if used else "free" if not _keeps(node, False, 0.0) else "closed"
    state = said.state
    if said.maintenance:
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
    if said.power in ("", "error"):  # unknown for a node that was just enrolled
        return "failed"
    if used:
        return "held"
    return "closed" if _keeps(node, True, 0.0) else "free"


def _believed(belief: BerthBelief | None) -> str:
    if belief is None:
        return "does not have it"
    words = "held" if belief.used else "closed" if belief.closed or belief.marks else "open"
    return ", ".join((words, *belief.marks))


def _keeps(node: NodeOnBoard, reads_ironic: bool, now: float) -> tuple[str, ...]:
    """In sentences, what would have to change first."""
    words = []
    said, belief = node.ironic, node.belief
    if said is not None:
        if said.maintenance:
            words.append(f"it is in maintenance{f': {said.why}' if said.why else ''}")
        if said.power == "error":
            words.append("its power cannot be controlled")
        elif not said.power:
            words.append("its power state is not known")
        if said.state != "available":
            error = f": {said.why}" if said.why and not said.maintenance else ""
            words.append(f"Ironic has it {said.state}{error}")
        if said.instance:
            words.append(f"Ironic has instance {said.instance} on it")
        if not said.resource_class:
            words.append("it has no resource class")
    elif reads_ironic:
        words.append("Ironic does not have it any more")
    if belief is None:
        words.append("placement does not have it")
        return tuple(words)
    if belief.used and not (said is not None and belief.holder and said.instance == belief.holder):
        words.append(f"{belief.holder or 'somebody'} holds it")
    words += belief.marks
    if belief.closed and not belief.used and not words:
        since = f" {duration(now - belief.told)} ago" if belief.told and now else ""
        words.append(f"placement was told{since} that nothing can be deployed on it")
    return tuple(words)


@dataclass(frozen=True, kw_only=True)
class BoardColumn:
    key: str
    title: str
    means: str
    count: int
    nodes: tuple[NodeShown, ...]  # the first of them


def board(
    seen: MetalSeen, now: float, wanted: str = "", column: str = "", most: int = 40
) -> list[BoardColumn]:
    """Return the columns that have nodes. `wanted` limits the nodes to those with this text in a name, state
    or id.
    """
    by_column: dict[str, list[NodeShown]] = {}
    for node in seen.nodes:
        if wanted and not _matches(node, wanted.lower()):
            continue
        one = shown(node, seen.reads_ironic, now)
        by_column.setdefault(one.column, []).append(one)
    return [
        BoardColumn(
            key=key,
            title=title,
            means=means,
            count=len(by_column[key]),
            nodes=_first(by_column[key], most),
        )
        for key, title, means in COLUMNS
        if key in by_column and column in ("", key)
    ]


def _first(nodes: Sequence[NodeShown], most: int) -> tuple[NodeShown, ...]:
    """Return the nodes whose two states differ first: they need an operator."""
    return tuple(sorted(nodes, key=lambda one: (not one.node.differs, one.node.name or one.node.id)))[:most]


def _matches(node: NodeOnBoard, wanted: str) -> bool:
    words = [node.id, node.name]
    if node.ironic:
        words += [node.ironic.state, node.ironic.resource_class, node.ironic.instance]
    if node.belief:
        words += [node.belief.cell, node.belief.agent, node.belief.holder]
    return any(wanted in word.lower() for word in words)
