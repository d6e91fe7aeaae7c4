"""Messages of the bus wake the pages that show them. The interval depends on the time that a page takes."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import thread_time

from bus.clock import monotonic

SOONEST = 0.1  # seconds between two updates
_SHARE = 0.02  # of a processor, that looking again and again may take
_OTHERS = 0.1  # of a second of asking counts: a sixth of the time is spent with that at most


class Stirring:
    """A signal with a `count` that grows with each message."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Event] = set()

    def stir(self) -> None:
        self.count += 1
        for event in self._waiting:
            event.set()

    @contextmanager
    def wakes(self, event: asyncio.Event) -> Iterator[None]:
        """Set the event with each message in the block."""
        self._waiting.add(event)
        try:
            yield
        finally:
            self._waiting.discard(event)


class MetalNews(Stirring):
    """Nodes with messages since they were read, while a page is open."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, None] = {}
        self.all = False  # too many to name them

    def heard(self, nodes: Collection[str]) -> None:
        """Record messages about the nodes. No names: any node may have changed."""
        if self._waiting:
            self.nodes.update(dict.fromkeys(nodes))
            self.all = self.all or not nodes
            self.stir()


class Pace:
    """Computes the interval until a part is made again from the processor time that it took."""

    def __init__(self, share: float = _SHARE, soonest: float = SOONEST) -> None:
        self.pause = soonest
        self._share = share
        self._soonest = soonest

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Measure a block that waits for answers: the time of other tasks is not counted."""
        began = monotonic()
        yield
        self.cost((monotonic() - began) * _OTHERS)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Measure a block without `await`, so that the time of other tasks is not counted."""
        began = thread_time()
        yield
        self.cost(thread_time() - began)

    def cost(self, seconds: float) -> None:
        self.pause = max(self._soonest, 0.7 * self.pause + 0.3 * seconds / self._share)
