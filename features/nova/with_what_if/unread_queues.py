"""Detects queues of Nova's notifications that grow because they have no consumer."""

import logging
from collections.abc import Sequence

from bus.errors import BrokerRefused, Unavailable
from bus.rabbit.foreign.listener import ForeignListener
from features.nova.with_what_if.messages import UnreadQueue

log = logging.getLogger(__name__)

PRIORITIES = ("info", "error")  # of notifications about scheduling
MOST_UNREAD = 1000  # messages; a queue with more is reported if it grows


class UnreadQueues:
    """Detects queues of Nova's notifications that grow because they have no consumer.

    When Nova publishes a notification, it creates a queue for the topic and priority, consumed or not.
    """

    def __init__(self, notifications: ForeignListener, topics: Sequence[str]) -> None:
        self._notifications = notifications
        self._names = [f"{topic}.{priority}" for topic in topics for priority in PRIORITIES]
        self._messages: dict[str, int] = {}
        self.growing: tuple[UnreadQueue, ...] = ()

    async def check(self) -> None:
        """Log each queue without a consumer that has more messages than at the previous check, and more than
        MOST_UNREAD.
        """
        try:
            before, self._messages = self._messages, await self._notifications.unread(self._names)
        except (Unavailable, BrokerRefused) as problem:
            log.info("nova's notification queues were not checked: %s", problem)
            return
        self.growing = tuple(
            UnreadQueue(queue=name, messages=number)
            for name, number in self._messages.items()
            if number > max(MOST_UNREAD, before.get(name, number))
        )
        for each in self.growing:
            log.warning(
                "nova's queue %s has %d messages, grows and has no consumer: limit it by a policy",
                each.queue,
                each.messages,
            )
