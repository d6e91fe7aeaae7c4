"""Holds the last known state of each node (see `known_state.py`), and its last report's sequence number."""

from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.known_state import InPlacement, KnownState, KnownStateRules, Moment, Step, handle, read
from ironic_sync.core.node import IronicNode, ReceivedNotification

MOST_NODES = 500_000  # a limit, so that invented nodes cannot fill the memory

_UNKNOWN = KnownState()


class KnownStates:
    """The known states of all Ironic nodes by uuid, at most `most`."""

    def __init__(self, rules: KnownStateRules, most: int = MOST_NODES) -> None:
        self.rules = rules
        self.received = 0
        self._most = most
        self._of: dict[str, KnownState] = {}

    def of(self, uuid: str) -> KnownState:
        """Return the assumed state of a node; an unknown node has an empty one."""
        return self._of.get(uuid, _UNKNOWN)

    def moment(self, now: float) -> Moment:
        """Return `now` with the number of notifications received so far, as the start of a read of Ironic."""
        return Moment(now, self.received)

    def handle(self, notification: ReceivedNotification, latest: float) -> Step:
        """Apply a notification to its node's state; raise Invalid for bad data.

        A notification dated after `latest` counts as dated `latest`.
        """
        self.received += 1
        notification = notification if notification.at <= latest else replace(notification, at=latest)
        return self._store(
            notification.uuid, handle(self.of(notification.uuid), notification, self.rules, self.received)
        )

    def read(
        self, uuid: str, node: IronicNode | None, began: Moment, in_placement: InPlacement | None = None
    ) -> Step:
        """Apply the result of a read from Ironic to a node's state; return the new state and what to do.
        `in_placement` is given if placement does not have the node's last report.
        """
        return self._store(uuid, read(self.of(uuid), uuid, node, began, self.rules, in_placement))

    def reported_elsewhere(self, uuid: str, sequence: int) -> None:
        """Forget this process's last report of a node, because another process reported the node later."""
        if uuid in self._of:
            before = self._of[uuid]
            self._of[uuid] = replace(before, reported=None, sequence=max(before.sequence, sequence))

    def placement_has(self, uuid: str, sequence: int) -> bool:
        """Record the sequence number of the report that placement has applied to a node.

        Return True if another process sent the report, after this process's last report of the node.
        """
        before = self.of(uuid)
        overruled = before.reported is not None and sequence > before.reported.sequence
        if overruled or sequence > before.sequence:
            report = None if overruled else before.reported
            self._store(
                uuid, Step(replace(before, reported=report, sequence=max(before.sequence, sequence)), "same")
            )
        return overruled

    def newer(self, uuid: str, sequence: int) -> InventoryReported | None:
        """Return a new report of a node if its known state is of a later time than the report `sequence`,
        which is in placement; else None.
        """
        belief = self.of(uuid)
        place = None if belief.node is None else self.rules.place(belief.node)
        if belief.node is None or place is None or belief.date * 1_000_000 <= sequence:
            return None
        report = self.rules.report(belief.node, place, belief.sequence + 1, has=True)
        if report is not None:
            self._of[uuid] = replace(belief, reported=report, sequence=report.sequence)
        return report

    def forget_reported(self) -> None:
        """Forget this process's last report of each node, as other processes may have sent newer reports."""
        self._of = {uuid: replace(belief, reported=None) for uuid, belief in self._of.items()}

    def _store(self, uuid: str, step: Step) -> Step:
        if step.belief is not _UNKNOWN:
            if uuid not in self._of and len(self._of) >= self._most:
                del self._of[next(iter(self._of))]
            self._of[uuid] = step.belief
        return step
