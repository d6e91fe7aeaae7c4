"""The known states of all nodes (the rules are in `known_state.py`), and the sequences of the reports that
placement has.
"""

from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.known_state import KnownState, KnownStateRules, Moment, Step, handle, read
from ironic_sync.core.node import IronicNode, Place, ReceivedNotification

MOST_NODES = 500_000  # a limit, so that invented nodes cannot fill the memory

_UNKNOWN = KnownState()


class KnownStates:
    """The known state of every Ironic node."""

    def __init__(self, rules: KnownStateRules, most: int = MOST_NODES) -> None:
        self.rules = rules
        self.heard = 0
        self._most = most
        self._of: dict[str, KnownState] = {}

    def of(self, uuid: str) -> KnownState:
        return self._of.get(uuid, _UNKNOWN)

    def moment(self, now: float) -> Moment:
        """Return the present time and notification count, to be noted before nodes are read."""
        return Moment(now, self.heard)

    def handle(self, said: ReceivedNotification, latest: float) -> Step:
        """Apply a notification to the known state of its node; a date after `latest` counts as `latest`. If
        it raises Invalid, nothing has changed.
        """
        self.heard += 1
        said = said if said.at <= latest else replace(said, at=latest)
        return self._keep(said.uuid, handle(self.of(said.uuid), said, self.rules, self.heard))

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
        """Apply a read of a node to its known state. If it raises Invalid, nothing has changed."""
        step = read(self.of(uuid), uuid, node, began, self.rules, known=known, again=again, was=was)
        return self._keep(uuid, step)

    def reported_elsewhere(self, uuid: str, sequence: int) -> None:
        """Forget the last report of a node, because another process has reported the node since."""
        if uuid in self._of:
            before = self._of[uuid]
            self._of[uuid] = replace(before, told=None, sequence=max(before.sequence, sequence))

    def placement_has(self, uuid: str, sequence: int) -> bool:
        """Record a report that placement has applied; return whether another process's replaced ours.

        Our next report then gets a higher sequence number, whatever the clocks of the two processes show.
        """
        before = self.of(uuid)
        overruled = before.told is not None and sequence > before.told.sequence
        if overruled or sequence > before.sequence:
            told = None if overruled else before.told
            self._keep(
                uuid, Step(replace(before, told=told, sequence=max(before.sequence, sequence)), "same")
            )
        return overruled

    def newer(self, uuid: str, sequence: int) -> InventoryReported | None:
        """Return our report of a node if it is newer than another process's report with this sequence."""
        belief = self.of(uuid)
        place = None if belief.node is None else self.rules.place(belief.node)
        if belief.node is None or place is None or belief.date * 1_000_000 <= sequence:
            return None
        told = self.rules.report(belief.node, place, belief.sequence + 1)
        if told is not None:
            self._of[uuid] = replace(belief, told=told, sequence=told.sequence)
        return told

    def forget_told(self) -> None:
        """Forget all last reports, as other processes may have sent newer ones: each next change is
        reported.
        """
        self._of = {uuid: replace(belief, told=None) for uuid, belief in self._of.items()}

    def _keep(self, uuid: str, step: Step) -> Step:
        if step.belief is not _UNKNOWN:
            if uuid not in self._of and len(self._of) >= self._most:
                del self._of[next(iter(self._of))]
            self._of[uuid] = step.belief
        return step
