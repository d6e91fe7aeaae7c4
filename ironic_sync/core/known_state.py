"""Keeps the state that is assumed for each Ironic node, and changes it after notifications and reads.

Notifications can be late, duplicated, in a wrong sequence, lost or wrong. A read returns the state at the
moment at which it began. A node is open if builds can claim it, and closed if its inventory is reserved. A
notification is ignored, or its node is reported to placement, or the node is read from Ironic's API. The
first row that matches decides:

| notification                             | meaning           | without API access      | with API access  |
|------------------------------------------|-------------------|-------------------------|------------------|
| .start and .error of create, update,     | a request to the  | ignored                 | .error: read     |
|   delete, maintenance_set                |   API             |                         |                  |
| allocation.* of a node                   | the node changed  | ignored                 | read             |
| older than the assumed state, and not of | late              | ignored                 | read, if it      |
|   a newer version                        |                   |                         |   differs        |
| delete.end                               | node deleted      | reported                | reported         |
| for a deleted node, except create.end    | late              | ignored                 | read             |
| create.end; provision_set, power_*,      | the node as it    | reported; .start and    | closed: reported;|
|   console_* (sent by the conductor)      |   was at that time|   .error never open     |   open: read     |
| maintenance_set.end, update.end:         |                   |                         |                  |
|   of a newer version                     | the node          | reported                | closed: reported;|
|   of the same version                    | fields that these | reported; in use or in  |   open: read;    |
|                                          |   calls change    |   maintenance: only if  |   and read after |
|                                          |                   |   it closes the node    |   every update,  |
|   of an older version                    | its traits        | reported                |   or if in doubt |

A node that becomes closed is reported immediately; before a node is reported as open, a read confirms it if
the API is available. A report equal to the last one is not sent again.

The version of a node is its `updated_at`, in whole seconds. Every write changes it, but the `.end` of a
change of traits carries the version from before the call. The order of two notifications of one second is
unknown, and in doubt the node stays closed. So after an update that closes the node, notifications dated
before the update are late. After an update that opens the node, notifications dated before the version of the
update are late.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.node import IronicNode, Place, ReceivedNotification
from ironic_sync.core.rule import deletion_report, is_open, report, sequence_at

Outcome = Literal["reported", "gone", "read", "same", "late", "asked", "hint", "echo", "not ours", "no class"]

_ASKED_OF_THE_API = frozenset({"create", "update", "delete", "maintenance_set"})
_SNAPSHOTS = frozenset({"update", "maintenance_set"})


class KnownStateRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that decide whether and how a node is reported to placement."""

    place: Callable[[IronicNode], Place | None]  # empty: the node is not selected
    can_read: bool = False
    only_reads_place: bool = False  # selecting a node needs its shard, which no notification carries
    skip_reserve_in_use: bool = False

    def report(
        self, node: IronicNode, place: Place, sequence: int = 0, *, has: bool = False
    ) -> InventoryReported | None:
        """Return a report of a node. `has`: placement has the node, perhaps with a class that it has lost."""
        return report(node, place, sequence, skip_reserve_in_use=self.skip_reserve_in_use, has=has)


class Moment(NamedTuple):
    """The time at which a read of nodes began, with the number of notifications received before."""

    at: float
    received: int


class InPlacement(NamedTuple):
    """The sequence number and the place of the last report that placement applied to a node. The defaults
    mean that placement does not have the node.
    """

    sequence: int = 0
    place: Place | None = None


class KnownState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one node in Ironic as notifications and reads have shown it so far."""

    node: IronicNode | None = None  # unknown or deleted if empty
    gone: bool = False
    date: float = 0.0  # notifications dated before this are late
    version: float | None = 0.0  # the newest `updated_at` seen; empty after a read that did not return it
    received: int = 0  # the count of notifications when the last one about this node arrived
    reported: InventoryReported | None = None  # the last report to placement
    sequence: int = 0  # the next report has a higher sequence


class Step(NamedTuple):
    """A node's new known state, and what to do: publish a report, read the node from Ironic, or nothing."""

    belief: KnownState
    outcome: Outcome
    report: InventoryReported | None = None
    read: bool = False


def handle(
    belief: KnownState, notification: ReceivedNotification, rules: KnownStateRules, received: int
) -> Step:
    """Return the new known state of a node after a notification, number `received`, and what to do; `belief`
    is the known state before. Raise Invalid for impossible data.
    """
    node = notification.node
    if notification.event in _ASKED_OF_THE_API and notification.phase in ("start", "error"):
        return Step(belief, "asked", read=rules.can_read and notification.phase == "error")
    if node is None:
        return Step(replace(belief, received=received), "hint", read=rules.can_read)
    at, age = sequence_at(notification.at), _age(belief, node)
    if notification.at < belief.date and (belief.gone or age != "newer"):
        doubt = age != "older" and _contradicts(belief, notification, node, rules)
        return Step(belief, "late", read=rules.can_read and doubt)
    # Placement has a report with a later date from another process, whose clock may be ahead.
    behind = belief.reported is None and at < belief.sequence
    ahead, belief = belief.sequence + 1, replace(belief, received=received, sequence=max(belief.sequence, at))
    if notification.event == "delete":
        return _deleted(belief, notification, node, rules, max(at, ahead))
    if belief.gone and notification.event != "create":
        return Step(belief, "echo", read=rules.can_read)
    return _seen(belief, notification, node, rules, max(at, ahead), behind=behind)


def read(
    belief: KnownState,
    uuid: str,
    node: IronicNode | None,  # None: Ironic has no such node
    began: Moment,
    rules: KnownStateRules,
    in_placement: InPlacement | None = None,
) -> Step:
    """Return the new known state of a node after a read, and what to do; `belief` is the known state before.
    `in_placement` is given if placement does not have the node's last report; then even an unchanged state is
    reported.

    If a notification arrived during the read, request another read unless nothing would be reported.
    """
    known = 0 if in_placement is None else in_placement.sequence
    sequence = max(sequence_at(began.at), belief.sequence + 1, known + 1)
    overtaken = belief.received > began.received
    if node is None:
        has = (None if in_placement is None else in_placement.place) or _last_place(belief, rules)
        return _not_found(belief, uuid, began, sequence, overtaken, has)
    place = rules.place(node)
    report = None if place is None else rules.report(node, place, sequence, has=known > 0 or _has(belief))
    outcome: Outcome = "not ours" if place is None else "no class" if report is None else "same"
    if report is not None and (in_placement is not None or not _same(report, belief.reported)):
        outcome = "reported"
    if overtaken:
        was_open = belief.reported is not None and is_open(belief.reported)
        closes = was_open and report is not None and not is_open(report)
        # Report a closed node immediately, even from an outdated read: closing a node too late is worse.
        if outcome == "reported" and closes:
            return Step(replace(belief, reported=report, sequence=sequence), "reported", report, read=True)
        return Step(belief, "read" if outcome == "reported" else outcome, read=outcome == "reported")
    belief = replace(belief, node=node, gone=False, date=max(belief.date, began.at), version=node.updated_at)
    if outcome != "reported":
        return Step(belief, outcome)
    return Step(replace(belief, reported=report, sequence=sequence), "reported", report)


def _seen(
    belief: KnownState,
    notification: ReceivedNotification,
    received: IronicNode,
    rules: KnownStateRules,
    sequence: int,
    *,
    behind: bool,
) -> Step:
    whole = _whole(received, belief.node)
    node = _merged(belief, notification.event, whole) if notification.event in _SNAPSHOTS else whole
    if rules.only_reads_place and not node.whole:
        return Step(belief, "read", read=rules.can_read)
    place = rules.place(node)
    report = None if place is None else rules.report(node, place, sequence, has=_has(belief))
    opens = report is not None and is_open(report)
    same = report is not None and _same(report, belief.reported)
    if opens and not same and not rules.can_read and notification.phase in ("start", "error"):
        return Step(belief, "asked")
    if opens and behind and not rules.can_read:
        return Step(belief, "late")
    version = node.updated_at or 0.0
    date = version if opens and notification.event in _SNAPSHOTS else notification.at
    date, version = max(belief.date, date), max(belief.version or 0.0, version)
    belief = replace(belief, node=node, gone=False, date=date, version=version)
    doubt = (
        behind or node != whole or (notification.event == "update" and (not same or rules.only_reads_place))
    )
    if report is None:
        outcome: Outcome = "not ours" if place is None else "no class"
        return Step(belief, outcome, read=rules.can_read and rules.only_reads_place and doubt)
    if same:
        return Step(belief, "same", read=rules.can_read and doubt)
    if opens and rules.can_read:
        return Step(belief, "read", read=True)
    return Step(
        replace(belief, reported=report, sequence=sequence), "reported", report, read=rules.can_read and doubt
    )


def _merged(belief: KnownState, event: str, new: IronicNode) -> IronicNode:
    """Return a node made from the `.end` notification `new` of an API call.

    Fields with possibly outdated values in the notification are copied from the known state.
    """
    old, age = belief.node, _age(belief, new)
    if old is None or age == "newer":
        return new
    about_maintenance = event == "maintenance_set"
    if age == "older":
        return old if about_maintenance else replace(old, traits=new.traits)
    return replace(
        new,
        provision_state=old.provision_state,  # the conductor reports provision state and power state itself
        target_provision_state=old.target_provision_state,
        power_state=old.power_state,
        maintenance=new.maintenance or (old.maintenance and not about_maintenance),
        instance_uuid=old.instance_uuid or new.instance_uuid,
    )


def _age(belief: KnownState, node: IronicNode) -> Literal["older", "same", "newer"]:
    """Return whether the version (`updated_at`) of a node in a notification is "older" or "newer" than the
    version in the known state, or the "same".
    """
    version = node.updated_at or 0.0
    if belief.version is None or version == belief.version:
        return "same"
    return "newer" if version > belief.version else "older"


def _deleted(
    belief: KnownState,
    notification: ReceivedNotification,
    node: IronicNode,
    rules: KnownStateRules,
    sequence: int,
) -> Step:
    known = belief.reported
    if known is not None:
        place: Place | None = Place.of(known)
    else:
        place = None if rules.only_reads_place else rules.place(node)
    # A deletion has no `updated_at`: use its date as the version.
    belief = _without(belief, notification.at, float(math.floor(notification.at)))
    if place is None:
        return Step(belief, "not ours")
    if known is not None and known.gone:
        return Step(belief, "same")
    report = deletion_report(node.uuid, place, sequence)
    return Step(replace(belief, reported=report, sequence=sequence), "gone", report)


def _not_found(
    belief: KnownState, uuid: str, began: Moment, sequence: int, overtaken: bool, has: Place | None
) -> Step:
    if overtaken:
        return Step(belief, "read", read=True)
    belief = _without(belief, began.at, 0.0)
    if has is None:
        return Step(belief, "same")
    report = deletion_report(uuid, has, sequence)
    return Step(replace(belief, reported=report, sequence=sequence), "gone", report)


def _without(belief: KnownState, at: float, version: float) -> KnownState:
    newest = max(belief.version or 0.0, version)
    return replace(belief, node=None, gone=True, date=max(belief.date, at), version=newest)


def _contradicts(
    belief: KnownState, notification: ReceivedNotification, node: IronicNode, rules: KnownStateRules
) -> bool:
    """Return whether a late notification shows another state than the last report: the node must be read."""
    if belief.gone or notification.event == "delete":
        return notification.event == ("create" if belief.gone else "delete")
    place = rules.place(_whole(node, belief.node))
    report = None if place is None else rules.report(node, place, has=_has(belief))
    return report is not None and not _same(report, belief.reported)


def _whole(new: IronicNode, old: IronicNode | None) -> IronicNode:
    """Return the node `new` with the shard of the last read if `new` is from a notification (no shard)."""
    if new.whole or old is None or not old.whole:
        return new
    return replace(new, shard=old.shard, whole=True)


def _same(report: InventoryReported, before: InventoryReported | None) -> bool:
    return before is not None and replace(report, sequence=before.sequence) == before


def _has(belief: KnownState) -> bool:
    return belief.reported is not None and not belief.reported.gone


def _last_place(belief: KnownState, rules: KnownStateRules) -> Place | None:
    """Return the place (cell, agent, zone) under which placement has a node, as far as this process knows;
    None if placement should not have the node.
    """
    if belief.reported is not None:
        return None if belief.reported.gone else Place.of(belief.reported)
    return None if belief.node is None else rules.place(belief.node)
