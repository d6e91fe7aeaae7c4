"""Counts builds in progress and failed builds of each host."""

from collections import Counter as Tally
from collections import deque

from scheduler_worker.core.host_map import NOBODY, HostColumns, HostKey

RECENT = 1.0  # seconds for which a build counts in addition to the host's report
HALVED_AFTER = 300.0  # seconds after which a failed build counts half
FORGIVEN = 2.0**-10  # counts of failed builds below this are set to 0
FULL_SCALE = 64  # number of half-lives after which all counts of failed builds are scaled down


class BuildCounts:
    """Counts the recent and failed builds of each host. All times are of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._columns = HostColumns()
        self._choices: deque[tuple[float, HostKey]] = deque()
        self._counted_until = now  # choices before this time no longer count
        self._undone: Tally[HostKey] = Tally()  # number of undone choices by host
        # A build that failed at this time counts 1. A later one counts more, so no count must be lowered as
        # time passes.
        self._whole = now

    def _place_new(self) -> None:
        pass

    def chose(self, cell: str, root: str, now: float) -> None:
        """Count a build that was chosen for a host just now; weighers may avoid hosts with recent builds."""
        key = cell, root
        self._choices.append((now + RECENT, key))
        slot = self._columns.slots.get(key)
        if slot is None:
            slot = self._columns.slot(key)
            self._place_new()
        self._columns.recent[slot] += 1

    def unchose(self, cell: str, root: str, at: float) -> None:
        """Undo `chose`: remove the choice made at `at` from a host's recent builds, unless it has expired."""
        if at + RECENT <= self._counted_until:
            return
        key = cell, root
        self._columns.recent[self._columns.slots[key]] -= 1
        self._undone[key] += 1

    def failed(self, cell: str, root: str, now: float) -> None:
        """Count a failed build of a host; a later failure counts more than an earlier one."""
        slot, weight = self._columns.slot((cell, root)), self._weight(now)
        self._columns.failures[slot] += weight

    def built(self, cell: str, root: str) -> None:
        """Record that a build succeeded on a host, which halves the host's count of failed builds."""
        slot = self._columns.slots.get((cell, root), NOBODY)
        self._columns.failures[slot] /= 2

    def _weight(self, now: float) -> float:
        """Return by how much the stored failures are too high at this time; scale them down if it becomes too
        much.
        """
        halvings = (now - self._whole) / HALVED_AFTER
        if halvings > FULL_SCALE:
            failures = self._columns.failures
            failures *= 2.0**-halvings if halvings < 1000 else 0.0
            failures[failures < FORGIVEN] = 0.0
            self._whole, halvings = now, 0.0
        return float(2.0**halvings)

    def _past(self, now: float) -> None:
        """Stop counting the choices whose time has passed."""
        choices, columns, undone = self._choices, self._columns, self._undone
        self._counted_until = max(self._counted_until, now)
        while choices and choices[0][0] <= now:
            key = choices.popleft()[1]
            if undone and undone[key]:
                undone[key] -= 1
            else:
                columns.recent[columns.slots[key]] -= 1
        if not choices and undone:
            undone.clear()
