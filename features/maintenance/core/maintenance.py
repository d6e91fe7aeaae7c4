"""Decides when the hosts of a maintenance window are closed, within budgets, and which of them are late."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from features.maintenance.messages import HostPhase, MaintenanceWindow

UNMEASURED = 60.0  # seconds assumed for a move before any was measured
MARGIN = 1.5  # the time reserved for a drain, as a multiple of its estimate
CLOSED: frozenset[HostPhase] = frozenset({"closing", "draining", "empty"})
OVER: frozenset[HostPhase] = frozenset({"ended", "kept", "opened"})


@dataclass(frozen=True, slots=True)
class MeasuredMove:
    """The memory of an instance that has moved, and the seconds that the move took."""

    memory_mb: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DrainedHost:
    """A host of a window with the memory of each instance that is still on the host."""

    root: str
    phase: HostPhase
    since: float
    domain: str
    memory_mb: Sequence[int]
    stuck: int = 0  # number of instances whose last move failed
    without_host: Mapping[str, str] = field(default_factory=dict)  # instance → why it would find no host now


def move_seconds(memory_mb: int, measured: Sequence[MeasuredMove]) -> float:
    """Estimate the duration of a move of an instance with this memory: the p90 of the measured durations. The
    duration of a smaller instance's move is first increased in proportion to the memory.
    """
    if not measured:
        return UNMEASURED
    factors = (max(1.0, memory_mb / (past.memory_mb or memory_mb or 1)) for past in measured)
    scaled = sorted(past.seconds * factor for past, factor in zip(measured, factors, strict=True))
    return scaled[min(len(scaled) - 1, len(scaled) * 9 // 10)]


def drain_seconds(sizes: Iterable[int], measured: Sequence[MeasuredMove], at_once: int) -> float:
    """Return the estimated duration of moves of instances with the memory `sizes`, `at_once` at a time."""
    known: dict[int, float] = {}
    each = [known.setdefault(size, move_seconds(size, measured)) for size in sizes]
    return max(sum(each) / at_once, max(each)) if each else 0.0


@dataclass(frozen=True)
class WindowPlanner:
    """The decisions about one window at one moment.

    `unavailable` has, by domain, the hosts that are down, or closed for this or another window.
    """

    window: MaintenanceWindow
    hosts: Sequence[DrainedHost]
    measured: Sequence[MeasuredMove]
    lead: float  # minimum number of seconds from the first drain to the window's begin
    unavailable: Mapping[str, Collection[str]]

    @property
    def has_begun(self) -> bool:
        """Return whether the drain of a host has begun."""
        return any(host.phase in CLOSED for host in self.hosts)

    def to_close(self, now: float) -> list[str]:
        """Return the roots of the hosts in phase `planned` that must be closed to new instances now."""
        window = self.window
        return self.next_hosts() if self.drain_begins() <= now < window.ends else []

    def next_hosts(self) -> list[str]:
        """Return the roots of the hosts in phase `planned` that the budget allows to close, in the order in
        which the maintenance window lists them.
        """
        taken = {domain: {*roots} for domain, roots in self.unavailable.items()}
        chosen = []
        for host in self.hosts:
            others = taken.setdefault(host.domain, set())
            if host.phase == "planned" and self._allows({*others, host.root}):
                others.add(host.root)
                chosen.append(host.root)
        return chosen

    def _allows(self, roots: Collection[str]) -> bool:
        return not self.window.budget or len(roots) <= self.window.budget

    def first_drain_seconds(self) -> float:
        """Return the estimated duration of the moves from the hosts that are drained first."""
        first = {*self.next_hosts()} | {host.root for host in self.hosts if host.phase in CLOSED}
        sizes = [size for host in self.hosts if host.root in first for size in host.memory_mb]
        return drain_seconds(sizes, self.measured, self.window.moves)

    def drain_begins(self) -> float:
        """Return the latest time at which drains must begin, so that the first hosts are empty when the
        window begins.
        """
        return self.window.begins - max(self.lead, MARGIN * self.first_drain_seconds())

    def empty_at(self, now: float) -> float:
        """Return the estimated time at which the hosts that are drained first have no instance; 0 if they
        have none.
        """
        seconds = self.first_drain_seconds()
        begin = now if self.has_begun else max(now, self.drain_begins())
        return begin + seconds if seconds else 0.0

    def late(self, now: float) -> dict[str, str]:
        """Return the roots of the hosts that are late, each with the reason.

        A host that is closed before the window begins must be empty when the window begins; any other host,
        when the window ends.
        """
        window, found = self.window, {}
        draining = [host for host in self.hosts if host.phase in ("closing", "draining") and host.memory_mb]
        remaining = (size for host in draining for size in host.memory_mb)
        left = drain_seconds(remaining, self.measured, window.moves)
        for host in draining:
            due = window.begins if host.since < window.begins else window.ends
            if host.stuck:
                found[host.root] = f"{host.stuck} of {len(host.memory_mb)} instances could not be moved"
            elif now >= due:
                found[host.root] = f"{len(host.memory_mb)} instances are still there"
            elif now + left > due:
                found[host.root] = f"about {left:.0f} s are needed, and {due - now:.0f} s are left"
        return found | self._late_before_draining(now, left)

    def _late_before_draining(self, now: float, left: float) -> dict[str, str]:
        """Return the roots of the hosts in phase `planned` that cannot be empty in time, each with the
        reason. `left`: the estimated duration of the moves that remain of drains in progress.
        """
        window, found, first = self.window, dict[str, str](), {*self.next_hosts()}
        due = window.begins if now < window.begins else window.ends
        needed = self.first_drain_seconds()
        begin = now + left if now >= window.begins else window.begins
        for host in self.hosts:
            if host.phase != "planned" or not host.memory_mb:
                continue
            alone = drain_seconds(host.memory_mb, self.measured, window.moves)
            if host.without_host:
                found[host.root] = without_host_text(host)
            elif host.root in first and now + needed > due:
                found[host.root] = f"about {needed:.0f} s are needed, and {due - now:.0f} s are left"
            elif host.root not in first and begin + alone > window.ends:
                found[host.root] = "the budget delays its drain, which would not end in the window"
        return found


def without_host_text(host: DrainedHost) -> str:
    """Return a sentence that names an instance which would find no host, and how many there are."""
    build, why = min(host.without_host.items())
    count = f"{len(host.without_host)} of {len(host.memory_mb)} instances"
    return f"{count} would find no host now, such as {build}: {why}"


def after_the_window(window: MaintenanceWindow, phase: HostPhase) -> HostPhase:
    """Return the phase that follows `phase` when the window of a host is over or cancelled, or the host's
    maintenance has ended.
    """
    if phase in OVER:
        return phase
    return "kept" if window.keep_closed and phase in CLOSED else "ended"
