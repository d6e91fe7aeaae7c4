"""Holds the known states of all nodes (see `known_state.py`) and the sequence numbers of their reports."""

from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.known_state import KnownState, KnownStateRules, Moment, Step, handle, read
from ironic_sync.core.node import IronicNode, Place, ReceivedNotification

MOST_NODES = 500_000  # a limit, so that invented nodes cannot fill the memory

_UNKNOWN = KnownState()


class KnownStates:
    """The known states of all Ironic nodes."""

    def __init__(self, rules: KnownStateRules, most: int = MOST_NODES) -> None:
        self.rules = rules
        self.received = 0
        self._most = most
        self._of: dict[str, KnownState] = {}

    def of(self, uuid: str) -> KnownState:
        return self._of.get(uuid, _UNKNOWN)

    def moment(self, now: float) -> Moment:
        """Return the current time and count of notifications, to be stored before nodes are read."""
        return Moment(now, self.received)

    def handle(self, notification: ReceivedNotification, latest: float) -> Step:
        """Apply a notification to its node; a date after `latest` counts as `latest`. Raises Invalid."""
        self.received += 1
        notification = notification if notification.at <= latest else replace(notification, at=latest)
        return self._store(
            notification.uuid, handle(self.of(notification.uuid), notification, self.rules, self.received)
        )

    def read(
        self,
        uuid: str,
        node: IronicNode | None,
        began: Moment,
        *,
        known: int = 0,
        again: bool = False,
        was: Place | None = None,
    ) -> Step:
        """Apply a read to the known state of a node; if Invalid is raised, the state is unchanged."""
        step = read(self.of(uuid), uuid, node, began, self.rules, known=known, again=again, was=was)
        return self._store(uuid, step)

    def reported_elsewhere(self, uuid: str, sequence: int) -> None:
        """Forget the last report of a node, because another process has reported the node later."""
        if uuid in self._of:
            before = self._of[uuid]
            self._of[uuid] = replace(before, reported=None, sequence=max(before.sequence, sequence))

    def placement_has(self, uuid: str, sequence: int) -> bool:
        """Record that placement applied a report; return True if it replaced this process's last report.

        The next report gets a higher sequence number, even if the clocks differ.
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
        """Return a report to send if a node's known state is newer than placement's report `sequence`."""
        belief = self.of(uuid)
        place = None if belief.node is None else self.rules.place(belief.node)
        if belief.node is None or place is None or belief.date * 1_000_000 <= sequence:
            return None
        report = self.rules.report(belief.node, place, belief.sequence + 1)
        if report is not None:
            self._of[uuid] = replace(belief, reported=report, sequence=report.sequence)
        return report

    def forget_reported(self) -> None:
        """Forget the last reports of all nodes, because other processes may have sent newer reports."""
        self._of = {uuid: replace(belief, reported=None) for uuid, belief in self._of.items()}

    def _store(self, uuid: str, step: Step) -> Step:
        if step.belief is not _UNKNOWN:
            if uuid not in self._of and len(self._of) >= self._most:
                del self._of[next(iter(self._of))]
            self._of[uuid] = step.belief
        return step
