"""News on the bus wakes the pages that show them; how often, what it costs to show them says."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import thread_time

from bus.clock import monotonic

SOONEST = 0.1  # seconds between two looks
_SHARE = 0.02  # of a processor, that looking again and again may take
_OTHERS = 0.1  # of a second of asking counts: a sixth of the time is spent with that at most


class Stirring:
    """`count` grows with whatever is heard."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Event] = set()

    def stir(self) -> None:
        self.count += 1
        for one in self._waiting:
            one.set()

    @contextmanager
    def wakes(self, event: asyncio.Event) -> Iterator[None]:
        """Set the event with everything heard in the block."""
        self._waiting.add(event)
        try:
            yield
        finally:
            self._waiting.discard(event)


class MetalNews(Stirring):
    """Nodes of which something was heard since they were read, while somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, None] = {}
        self.all = False  # so many that it is not said which

    def heard(self, nodes: Collection[str]) -> None:
        """None named: it may be any."""
        if self._waiting:
            self.nodes.update(dict.fromkeys(nodes))
            self.all = self.all or not nodes
            self.stir()


class Pace:
    """How long to leave a part as it is, by the processor's time that it took to make."""

    def __init__(self, share: float = _SHARE, soonest: float = SOONEST) -> None:
        self.pause = soonest
        self._share = share
        self._soonest = soonest

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Others are asked in the block: they are not to be kept at it either."""
        began = monotonic()
        yield
        self.cost((monotonic() - began) * _OTHERS)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Nothing is awaited in the block: the time would be others' too."""
        began = thread_time()
        yield
        self.cost(thread_time() - began)

    def cost(self, seconds: float) -> None:
        self.pause = max(self._soonest, 0.7 * self.pause + 0.3 * seconds / self._share)
