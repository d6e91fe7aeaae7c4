"""The hosts as one scheduler knows them: placement's index, the hosts' reports, and its own choices."""

from bus.candidates import Bools, CandidateSource
from bus.clock import Clock
from scheduler_worker.agents import Roster
from scheduler_worker.core.host_map import HostMap, HostsNow
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.hosts import HostBook
from scheduler_worker.pending_choices import PendingChoices


class KnownHosts:
    """The index, the reports, the choices whose claims the index does not show yet, and the schedulers that
    share the hosts.
    """

    def __init__(self, source: CandidateSource, clock: Clock, options: SchedulerOptions) -> None:
        self.source = source
        self.clock = clock
        self.book = HostBook(clock.monotonic(), options.grace)
        self.pending = PendingChoices(source, self.book, clock)
        self.roster = Roster(clock)
        self.map = HostMap(source, options.policy.cells)

    def now(self) -> tuple[HostsNow, Bools]:
        """Return the reported state of all hosts, and a mask of the hosts that have an agent."""
        now = self.clock.monotonic()
        self.pending.expire()
        self.map.update()
        self.map.share(self.roster.live, self.roster.name)
        return self.book.snapshot(self.source, now), self.map.served
