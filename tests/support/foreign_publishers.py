"""A publisher for another system's exchange, without a broker."""

from collections.abc import Sequence
from typing import Any

from bus.errors import Unavailable
from bus.rabbit.foreign.publisher import ForeignPublisher


class PublisherWithoutBroker(ForeignPublisher):
    """A publisher that raises the given errors, one for each publication, and then keeps all messages."""

    def __init__(self, *problems: Unavailable, **options: Any) -> None:
        super().__init__("amqp://u:p@broker", "other", "test", **options)
        self.problems = list(problems)
        self.published: list[tuple[str, bytes]] = []

    async def ready(self) -> None: ...

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        if self.problems:
            raise self.problems.pop(0)
        self.published += messages
