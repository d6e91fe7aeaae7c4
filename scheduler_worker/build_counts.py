"""Counts of builds on each host: builds sent recently, and failures, which fade with time."""

from collections import Counter, deque

from scheduler_worker.core.host_map import NOBODY, HostColumns, HostKey

RECENT = 1.0  # seconds for which a build counts in addition to the host's report
HALVED_AFTER = 300.0  # seconds in which a failure comes to count half
FORGIVEN = 2.0**-10  # smaller failures are dropped
FULL_SCALE = 64  # halvings after which the scale of failures is set anew


class BuildCounts:
    """Counts of builds by host. All times are those of a monotonic clock."""

    def __init__(self, now: float, halved_after: float) -> None:
        self._columns = HostColumns()
        self._choices: deque[tuple[float, HostKey]] = deque()
        self._counted_until = now  # choices before this time no longer count
        self._taken_back: Counter[HostKey] = Counter()  # choices that were undone
        self._halved_after = halved_after
        # a failure at this time counts 1 and a later failure more, so that all fade together
        self._whole = now

    def _place_new(self) -> None:
        pass

    def chose(self, cell: str, root: str, now: float) -> None:
        key = cell, root
        self._choices.append((now + RECENT, key))
        slot = self._columns.slots.get(key)
        if slot is None:
            slot = self._columns.slot(key)
            self._place_new()
        self._columns.recent[slot] += 1

    def unchose(self, cell: str, root: str, at: float) -> None:
        """Undo the count of a build chosen at this time, unless it has expired already."""
        if at + RECENT <= self._counted_until:
            return
        key = cell, root
        self._columns.recent[self._columns.slots[key]] -= 1
        self._taken_back[key] += 1

    def recent(self, cell: str, root: str, now: float) -> int:
        """Return the number of builds sent to a host that its last report may not include yet."""
        self._past(now)
        return int(self._columns.recent[self._columns.slots.get((cell, root), NOBODY)])

    def failed(self, cell: str, root: str, now: float) -> None:
        slot, weight = self._columns.slot((cell, root)), self._weight(now)
        self._columns.failures[slot] += weight

    def built(self, cell: str, root: str) -> None:
        """Record a new instance on a host: half of the host's failed builds are forgiven."""
        slot = self._columns.slots.get((cell, root), NOBODY)
        self._columns.failures[slot] /= 2

    def failures(self, cell: str, root: str, now: float) -> float:
        """Return the number of failed builds on a host, each halved repeatedly with time."""
        weight = self._weight(now)
        return float(self._columns.failures[self._columns.slots.get((cell, root), NOBODY)]) / weight

    def _weight(self, now: float) -> float:
        halvings = (now - self._whole) / self._halved_after
        if halvings > FULL_SCALE:
            failures = self._columns.failures
            failures *= 2.0**-halvings if halvings < 1000 else 0.0
            failures[failures < FORGIVEN] = 0.0
            self._whole, halvings = now, 0.0
        return float(2.0**halvings)

    def _past(self, now: float) -> None:
        choices, columns, taken_back = self._choices, self._columns, self._taken_back
        self._counted_until = max(self._counted_until, now)
        while choices and choices[0][0] <= now:
            key = choices.popleft()[1]
            if taken_back and taken_back[key]:
                taken_back[key] -= 1
            else:
                columns.recent[columns.slots[key]] -= 1
        if not choices and taken_back:
            taken_back.clear()
