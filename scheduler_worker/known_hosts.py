"""All that a scheduler knows of hosts: index, reports, choices whose claims are on the way, schedulers."""

from collections.abc import Collection

from bus.candidates import Bools, CandidateSource
from bus.clock import Clock
from scheduler_worker.core.demand import DemandCounts
from scheduler_worker.core.host_map import HostMap, HostsNow
from scheduler_worker.hosts import HostBook
from scheduler_worker.pending_choices import PendingChoices
from scheduler_worker.roster import Roster


class KnownHosts:
    """The index, the reports, the choices whose claims the index does not show yet, and the schedulers that
    share the hosts.
    """

    def __init__(
        self, source: CandidateSource, clock: Clock, grace: float, cells: Collection[str] | None
    ) -> None:
        self.source = source
        self.clock = clock
        self.book = HostBook(clock.monotonic(), grace)
        self.pending = PendingChoices(source, self.book, clock)
        self.roster = Roster(clock)
        self.map = HostMap(source, cells)
        self.demand = DemandCounts()

    def now(self) -> tuple[HostsNow, Bools]:
        """Return the reported state of all hosts, and a mask of the hosts that have an agent."""
        now = self.clock.monotonic()
        self.pending.expire()
        self.map.update()
        self.map.share(self.roster.live, self.roster.name)
        return self.book.snapshot(self.source, now, self.demand.usual()), self.map.served
