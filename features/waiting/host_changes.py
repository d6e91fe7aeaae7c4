"""Passes changes of hosts to the queues of waiting requests."""

from collections.abc import Callable, Sequence

import msgspec

from bus.messages import HostReported
from bus.reports import HostState
from features.waiting.store import WaitingStore
from scheduler_worker.extension import Placing


class HostChanges:
    """Passes changed hosts to the queues of waiting requests. If these hosts run an instance that a waiting
    request names, calls `recheck` to read the hosts of such instances again.
    """

    def __init__(self, scheduler: Placing, store: WaitingStore, recheck: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.store = store
        self._recheck = recheck
        self._shared: frozenset[str] = frozenset()  # resource classes of sharing providers
        scheduler.source.watch_for_more(self._changed)
        scheduler.source.watch(self._touched)
        scheduler.source.watch_wakes(store.on_wakes)
        scheduler.watch_reports(self._reporting)

    def _changed(self, roots: Sequence[str], described: Sequence[str]) -> None:
        store, queues = self.store, self.store.queues
        sharing = self.scheduler.source.sharing
        if sharing or self._shared:
            shared = frozenset[str]().union(*sharing.values())
            if shared != self._shared:
                self._shared, store.regroup = shared, True
            if not sharing.keys().isdisjoint(roots):
                queues.everything()
        if described:
            store.regroup = True
            queues.everything()
        queues.changed(roots)
        store.held.wake()

    def _touched(self, roots: Sequence[str], described: Sequence[str]) -> None:
        if len(self.store.queues):
            self.scheduler.pending.expire()
        if self.store.related.include(roots):
            self._recheck()

    def _reporting(self, report: HostReported) -> Callable[[], None]:
        """Return a function that, after a report of hosts was applied, lets waiting requests try the hosts
        with a changed state.
        """
        scheduler, queues = self.scheduler, self.store.queues
        if not len(queues):
            return lambda: None
        book, now = scheduler.book, scheduler.clock.monotonic()
        before = {state.root: book.state(report.cell, state.root) for state in report.hosts}
        was_down = bool(book.down(report.cell, report.agent, now)) or any(
            book.why_down(report.cell, root, report.agent, now) for root in before
        )

        def applied() -> None:
            if was_down:
                queues.on_agent_returned()
            after = {root: book.state(report.cell, root) for root in before}
            queues.reported([root for root in before if not _is_equivalent(before[root], after[root])])
            self.store.held.wake()

        return applied


def _is_equivalent(state: HostState | None, other: HostState | None) -> bool:
    """Return whether two states of a host differ at most in its load, which no filter reads."""
    if state is None or other is None:
        return state is other
    return msgspec.structs.replace(state, load=other.load) == other
