"""Publishes which nodes notifications were about, so that pages that show them are refreshed."""

from collections.abc import Awaitable, Collection
from typing import Protocol

from bus.messages import MOST_SPOKEN, IronicSpoke
from bus.rate_limited import RateLimitedPublisher


class SaysSpoke(Protocol):
    def __call__(self, *messages: IronicSpoke) -> Awaitable[None]: ...


class SpokenNodes:
    """Collects nodes and publishes them at intervals. Losing some is harmless: pages re-read all nodes
    periodically.
    """

    def __init__(self, say: SaysSpoke) -> None:
        self._say = say
        self._nodes: set[str] = set()
        self._word = RateLimitedPublisher(self._tell, "that Ironic spoke of nodes")
        self.run = self._word.run

    def of(self, nodes: Collection[str]) -> None:
        """Add nodes with notifications; their reports, if any, are published already."""
        self._nodes.update(nodes)
        self._word.due()

    async def _tell(self) -> None:
        nodes, self._nodes = self._nodes, set()
        await self._say(IronicSpoke(nodes=tuple(sorted(nodes)) if len(nodes) <= MOST_SPOKEN else ()))
