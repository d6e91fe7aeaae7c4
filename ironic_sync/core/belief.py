"""What is believed of each node: which of the things said of it counts, and what to do about it.

Notifications are hints: they come late, twice, out of order or never, and some tell what is not so. Reads are
the truth as of the moment they began. The rules, the first that fits:

| said                                     | taken as          | without an API          | with one         |
|------------------------------------------|-------------------|-------------------------|------------------|
| .start and .error of create, update,     | what was asked    | nothing                 | .error: read     |
|   delete, maintenance_set                |   for             |                         |                  |
| allocation.* of a node                   | a hint            | nothing                 | read             |
| dated before what is believed, and not   | late              | nothing                 | read, if it says |
|   of a newer version                     |                   |                         |   otherwise      |
| delete.end                               | the end           | told                    | told             |
| of a node that is gone, not create.end   | an echo           | nothing                 | read             |
| create.end; provision_set, power_*,      | the node as it    | told; but .start and    | closed: told;    |
|   console_* (the conductor speaks)       |   was then        |   .error never open     |   open: read     |
| maintenance_set.end, update.end:         |                   |                         |                  |
|   of a newer version than is believed    | the node          | told                    | closed: told;    |
|   of the same version                    | what such calls   | told; in use or in      |   open: read;    |
|                                          |   change          |   maintenance: only as  |   and read after |
|                                          |                   |   far as it closes      |   every update,  |
|   of an older version                    | its traits        | told                    |   or if in doubt |

So closing acts at once and opening is confirmed where it can be. What was told last is not told again.

The version is `updated_at`, in whole seconds. Every write moves it, but the `.end` of a change of traits
carries the one from before the call: of two things said of one second it is not known which is newer, and in
doubt the node stays closed. For the same reason what an update says counts from its own time on when it
closes the node, and only from the second of its version when it opens it.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.envelope import HeardNotification
from ironic_sync.core.node import IronicNode, Place
from ironic_sync.core.rule import farewell, is_open, report, sequence_at

Outcome = Literal["told", "gone", "read", "same", "late", "asked", "hint", "echo", "not ours", "no class"]

_ASKED_OF_THE_API = frozenset({"create", "update", "delete", "maintenance_set"})
_SNAPSHOTS = frozenset({"update", "maintenance_set"})


class BeliefRules(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes are seen here."""

    place: Callable[[IronicNode], Place | None]  # None: not one of ours
    can_read: bool = False
    only_reads_place: bool = False  # which are ours depends on what no notification carries: the shard
    skip_reserve_in_use: bool = False

    def report(self, node: IronicNode, place: Place, sequence: int = 0) -> InventoryReported | None:
        return report(node, place, sequence, skip_reserve_in_use=self.skip_reserve_in_use)


class Moment(NamedTuple):
    """When a read began: by our clock, and by how much had been heard until then."""

    at: float
    heard: int


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """What is believed of one node."""

    node: IronicNode | None = None  # None: never heard of, or gone
    gone: bool = False
    date: float = 0.0  # what was said before it is late
    version: float | None = 0.0  # the newest `updated_at` seen; None: it was read, but not that
    heard: int = 0  # how much had been heard of all nodes when something new was said of this one
    told: InventoryReported | None = None  # what placement was told last
    sequence: int = 0  # what it is told next has a higher one


class Step(NamedTuple):
    """What comes of something said or read: perhaps a report to make, or the node to be read."""

    belief: Belief
    outcome: Outcome
    report: InventoryReported | None = None
    read: bool = False


def hear(belief: Belief, said: HeardNotification, rules: BeliefRules, heard: int) -> Step:
    """`heard` says how much has been heard of all nodes, this included. Raises Invalid."""
    node = said.node
    if said.event in _ASKED_OF_THE_API and said.phase in ("start", "error"):
        return Step(belief, "asked", read=rules.can_read and said.phase == "error")
    if node is None:
        return Step(replace(belief, heard=heard), "hint", read=rules.can_read)
    at, age = sequence_at(said.at), _age(belief, node)
    if said.at < belief.date and (belief.gone or age != "newer"):
        doubt = age != "older" and _says_otherwise(belief, said, node, rules)
        return Step(belief, "late", read=rules.can_read and doubt)
    # Others told placement what is dated later: they, or their clock, may have been ahead of this.
    behind = belief.told is None and at < belief.sequence
    ahead, belief = belief.sequence + 1, replace(belief, heard=heard, sequence=max(belief.sequence, at))
    if said.event == "delete":
        return _deleted(belief, said, node, rules, max(at, ahead))
    if belief.gone and said.event != "create":
        return Step(belief, "echo", read=rules.can_read)
    seen = _whole(node, belief.node)
    merged = _merged(belief, said.event, seen) if said.event in _SNAPSHOTS else seen
    return _seen(belief, merged, said, rules, max(at, ahead), behind=behind, doubt=behind or merged != seen)


def read(
    belief: Belief,
    uuid: str,
    node: IronicNode | None,
    began: Moment,
    rules: BeliefRules,
    *,
    known: int = 0,
    again: bool = False,
    was: Place | None = None,
) -> Step:
    """The node was read (None: there is none). Placement has `known` as its sequence, and its place as `was`.

    `again`: what placement has is not that, so what was told is told again.

    If something was said of the node meanwhile, nothing that contradicts it is settled: it is read again.
    """
    sequence = max(sequence_at(began.at), belief.sequence + 1, known + 1)
    overtaken = belief.heard > began.heard
    if node is None:
        has = (was if again else None) or _last_place(belief, rules)
        return _not_found(belief, uuid, began, sequence, overtaken, has)
    place = rules.place(node)
    told = None if place is None else rules.report(node, place, sequence)
    outcome: Outcome = "not ours" if place is None else "no class" if told is None else "same"
    if told is not None and (again or not _same(told, belief.told)):
        outcome = "told"
    if overtaken:
        closes = told is not None and not is_open(told) and belief.told is not None and is_open(belief.told)
        if outcome == "told" and closes:  # rather a moment too long than too late
            return Step(replace(belief, told=told, sequence=sequence), "told", told, read=True)
        return Step(belief, "read" if outcome == "told" else outcome, read=outcome == "told")
    belief = replace(
        belief,
        node=node,
        gone=False,
        date=max(belief.date, began.at),
        version=node.updated_at,
    )
    if outcome != "told":
        return Step(belief, outcome)
    return Step(replace(belief, told=told, sequence=sequence), "told", told)


def _seen(
    belief: Belief,
    node: IronicNode,
    said: HeardNotification,
    rules: BeliefRules,
    sequence: int,
    *,
    behind: bool,
    doubt: bool,
) -> Step:
    """This is how the node is now believed to be."""
    if rules.only_reads_place and not node.whole:
        return Step(belief, "read", read=rules.can_read)
    place = rules.place(node)
    told = None if place is None else rules.report(node, place, sequence)
    opens = told is not None and is_open(told)
    same = told is not None and _same(told, belief.told)
    if opens and not same and not rules.can_read and said.phase in ("start", "error"):
        return Step(belief, "asked")
    if opens and behind and not rules.can_read:
        return Step(belief, "late")
    version = node.updated_at or 0.0
    date = version if opens and said.event in _SNAPSHOTS else said.at
    belief = replace(
        belief,
        node=node,
        gone=False,
        date=max(belief.date, date),
        version=max(belief.version or 0.0, version),
    )
    doubt = doubt or (said.event == "update" and (not same or rules.only_reads_place))
    if told is None:
        outcome: Outcome = "not ours" if place is None else "no class"
        return Step(belief, outcome, read=rules.can_read and rules.only_reads_place and doubt)
    if same:
        return Step(belief, "same", read=rules.can_read and doubt)
    if opens and rules.can_read:
        return Step(belief, "read", read=True)
    return Step(replace(belief, told=told, sequence=sequence), "told", told, read=rules.can_read and doubt)


def _merged(belief: Belief, event: str, new: IronicNode) -> IronicNode:
    """What the end of an API call says of the node, without what may be older than what is believed."""
    old, age = belief.node, _age(belief, new)
    if old is None or age == "newer":
        return new
    about_maintenance = event == "maintenance_set"
    if age == "older":
        return old if about_maintenance else replace(old, traits=new.traits)
    return replace(
        new,
        provision_state=old.provision_state,  # of this and of power the conductor tells
        target_provision_state=old.target_provision_state,
        provision_updated_at=old.provision_updated_at,
        power_state=old.power_state,
        maintenance=new.maintenance or (old.maintenance and not about_maintenance),
        instance_uuid=old.instance_uuid or new.instance_uuid,
    )


def _age(belief: Belief, node: IronicNode) -> Literal["older", "same", "newer"]:
    """Of what is said, against what is believed. `same` is no more than not known to be otherwise."""
    version = node.updated_at or 0.0
    if belief.version is None or version == belief.version:
        return "same"
    return "newer" if version > belief.version else "older"


def _deleted(
    belief: Belief, said: HeardNotification, node: IronicNode, rules: BeliefRules, sequence: int
) -> Step:
    known = belief.told
    if known is not None:
        place: Place | None = _place_of(known)
    else:
        place = None if rules.only_reads_place else rules.place(node)
    belief = _without(belief, said.at, float(math.floor(said.at)))  # no later version was of this node
    if place is None:
        return Step(belief, "not ours")
    if known is not None and known.gone:
        return Step(belief, "same")
    told = farewell(node.uuid, place, sequence)
    return Step(replace(belief, told=told, sequence=sequence), "gone", told)


def _not_found(
    belief: Belief, uuid: str, began: Moment, sequence: int, overtaken: bool, has: Place | None
) -> Step:
    """`has`: where placement has it."""
    if overtaken:
        return Step(belief, "read", read=True)
    belief = _without(belief, began.at, 0.0)
    if has is None:
        return Step(belief, "same")
    told = farewell(uuid, has, sequence)
    return Step(replace(belief, told=told, sequence=sequence), "gone", told)


def _without(belief: Belief, at: float, version: float) -> Belief:
    newest = max(belief.version or 0.0, version)
    return replace(belief, node=None, gone=True, date=max(belief.date, at), version=newest)


def _says_otherwise(belief: Belief, said: HeardNotification, node: IronicNode, rules: BeliefRules) -> bool:
    """Would what came late be news, if it were not late only by a clock that goes wrong?"""
    if belief.gone or said.event == "delete":
        return said.event == ("create" if belief.gone else "delete")
    place = rules.place(_whole(node, belief.node))
    told = None if place is None else rules.report(node, place)
    return told is not None and not _same(told, belief.told)


def _whole(new: IronicNode, old: IronicNode | None) -> IronicNode:
    """With what only a read tells, as it was last read."""
    if new.whole or old is None or not old.whole:
        return new
    return replace(new, shard=old.shard, whole=True)


def _same(told: InventoryReported, before: InventoryReported | None) -> bool:
    return before is not None and replace(told, sequence=before.sequence) == before


def _last_place(belief: Belief, rules: BeliefRules) -> Place | None:
    """Where placement has it as far as we know; None when it has it no more, or never had."""
    if belief.told is not None:
        return None if belief.told.gone else _place_of(belief.told)
    return None if belief.node is None else rules.place(belief.node)


def _place_of(told: InventoryReported) -> Place:
    return Place(cell=told.cell, agent=told.agent, zone=told.zone)
