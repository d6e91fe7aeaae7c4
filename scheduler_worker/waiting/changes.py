"""Changes of hosts that may help waiting requests: of the index, and of the hosts' reports."""

from collections.abc import Callable, Sequence

import msgspec

from bus.messages import HostReported
from bus.reports import HostState
from scheduler_worker.placing import Scheduler
from scheduler_worker.waiting.store import WaitingStore


class HostChanges:
    """Marks changes in the queues; `recheck` is called for hosts with related instances."""

    def __init__(self, scheduler: Scheduler, store: WaitingStore, recheck: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.store = store
        self._recheck = recheck
        self._shared: frozenset[str] = frozenset()  # resource classes of sharing providers
        scheduler.source.watch_for_more(self._changed)
        scheduler.source.watch(self._touched)

    def _changed(self, roots: Sequence[str], described: Sequence[str]) -> None:
        """Handle hosts that may have more free capacity, and changed descriptions of hosts."""
        store, room = self.store, self.store.room
        sharing = self.scheduler.source.sharing
        if sharing or self._shared:
            shared = frozenset[str]().union(*sharing.values())
            if shared != self._shared:
                self._shared, store.regroup = shared, True
            if not sharing.keys().isdisjoint(roots):
                room.everything()
        if described:
            store.regroup = True
            room.everything()
        room.changed(roots)
        store.wake()

    def _touched(self, roots: Sequence[str], described: Sequence[str]) -> None:
        """Handle changed hosts, which may have related instances."""
        if len(self.store.room):
            self.scheduler.pending.look(self.scheduler.clock.monotonic())
        if self.store.related.around(roots):
            self._recheck()

    async def handle(self, report: HostReported) -> None:
        """Handle a host's report: the host may fit now."""
        scheduler, room = self.scheduler, self.store.room
        if not len(room):
            await scheduler.handle(report)
            return
        book, now = scheduler.book, scheduler.clock.monotonic()
        before = {state.root: book.state(report.cell, state.root) for state in report.hosts}
        was_down = bool(book.down(report.cell, report.agent, now)) or any(
            book.why_down(report.cell, root, report.agent, now) for root in before
        )
        await scheduler.handle(report)
        if was_down:
            room.on_agent_returned()
        room.reported(
            [root for root, state in before.items() if not _is_alike(state, book.state(report.cell, root))]
        )
        self.store.wake()


def _is_alike(state: HostState | None, other: HostState | None) -> bool:
    """Return whether filters decide the same for both states; the load is only for weighers."""
    if state is None or other is None:
        return state is other
    return state is other or msgspec.structs.replace(state, load=0.0) == msgspec.structs.replace(
        other, load=0.0
    )
