"""Publishes the messages that programs outside berth receive on channels of their own, so that a queue of one
program delays neither berth nor other programs.

The broker confirms a message when all queues with a matching binding have stored it. A quorum queue without a
leader stores nothing, and RabbitMQ (3.10 and 4) then stops more than this message:

- the first message of a channel for such a queue blocks the channel for about a minute;
- with 32 unconfirmed messages for the queue, the broker reads about 200 further messages of the channel, and
  then nothing more of the connection.

So messages for clients share one channel with a limited window. If a message is not confirmed soon, this
channel is replaced, and the message is published again on a channel for its client only; the other
unconfirmed messages are published again on the new shared channel. If the message is not confirmed on the
client's channel either, Unconfirmed is raised: the publisher repeats it later. Until that channel has no
unconfirmed message left, further messages for the client fail immediately.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Literal

from bus.errors import Unconfirmed
from bus.rabbit.connection import BROKEN, cancelled_by_us
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import NotTaken, Post
from bus.rabbit.reconnecting import Link, Session
from bus.topics import receiver_of

log = logging.getLogger(__name__)

WINDOW = 128  # unconfirmed messages of the shared channel; above about 200 the broker blocks the connection
SHARED_SECONDS = 2.0  # for the confirm of a message on the shared channel
OWN_WINDOW = 16  # unconfirmed messages of one client's channel
OWN_SECONDS = 3.0  # for the confirm of a message on the client's channel
# After this time a client's channel with unconfirmed messages is replaced: a confirm may be lost.
RENEWED_SECONDS = 90.0
MOST_CLIENTS = 64  # clients with a channel of their own
_SHARED_TRIES = 2  # after as many interruptions a message is published on its client's channel
_CLOSING_SECONDS = 120.0  # longer than a queue without a leader blocks a channel
_POLL_SECONDS = 0.5


Outcome = Literal["confirmed", "refused", "late", "interrupted"]


class _Interrupted(Exception):
    """Raised in the publishers of unconfirmed messages of a channel that another message has blocked."""


class ClientChannels:
    """The channels of one process for messages to clients."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._shared: _Channel | None = None
        self._own: dict[str, _Channel] = {}  # client → its channel, while its messages are late

    async def post(self, post: Post) -> None:
        """Publish a message; raise Unconfirmed if the broker does not confirm it in time."""
        await self._link.post(post, self._publish)

    async def _publish(self, session: Session, post: Post, *, apart: bool) -> None:
        client = receiver_of(post.key)
        if apart or client in self._own or not await self._publish_shared(session, post):
            await self._publish_alone(session, client, post)

    async def _publish_shared(self, session: Session, post: Post) -> bool:
        """Publish a message on the channel of all clients, and return whether it was confirmed in time."""
        interrupted = 0
        while True:
            shared = self._shared
            if shared is None or shared.session is not session:
                shared = self._shared = _Channel(session, self._link, WINDOW)
            async with shared.window:
                if shared is not self._shared:  # replaced in the meantime
                    continue
                outcome = await shared.publish(post, SHARED_SECONDS)
            # The oldest unconfirmed message may have blocked the channel: only its client is late.
            if outcome == "interrupted" or (outcome == "late" and not shared.is_oldest(post)):
                interrupted += 1
                if interrupted < _SHARED_TRIES:
                    continue
                return False
            if outcome != "confirmed" and shared is self._shared:
                self._shared = None
                shared.retire(interrupt=outcome == "late")
            return outcome == "confirmed"

    async def _publish_alone(self, session: Session, client: str, post: Post) -> None:
        own = self._own.get(client)
        if own is None or own.session is not session or own.has_expired:
            own = self._replace(session, client, own)
        if own is None or own.is_stuck or own.window.locked():
            raise Unconfirmed([post.key])
        async with own.window:
            outcome = await own.publish(post, OWN_SECONDS)
        if outcome != "confirmed":
            if not own.is_reported:
                own.is_reported = True
                log.warning("a queue of %s confirms no messages (%s): they are repeated", client, post.key)
            raise Unconfirmed([post.key])
        if own is self._own.get(client) and not own.oldest:
            del self._own[client]
            own.retire()
            if own.is_reported:
                log.warning("the queues of %s confirm messages again", client)

    def _replace(self, session: Session, client: str, former: "_Channel | None") -> "_Channel | None":
        """Make a new channel for a client; return None if too many clients have one."""
        for name in [name for name, channel in self._own.items() if channel.has_expired and name != client]:
            self._own.pop(name).retire()
        if former is None and len(self._own) >= MOST_CLIENTS:
            return None
        own = self._own[client] = _Channel(session, self._link, OWN_WINDOW)
        if former is not None:
            own.is_reported = former.is_reported
            former.retire()
        return own


class _Channel:
    """An AMQP channel with confirms, opened by its first message."""

    def __init__(self, session: Session, link: Link, window: int) -> None:
        self.session = session
        self.window = asyncio.Semaphore(window)
        self.is_reported = False  # whether the log names the client whose messages are late
        self._link = link
        self._clock = asyncio.get_running_loop().time
        self._late_since = 0.0  # when a message was not confirmed in time, or 0
        self._refused_at = 0.0  # when the broker refused a message, or 0
        self._channel: BulkChannel | None = None
        self._opening = asyncio.Lock()
        self._publishing = 0
        self._is_retired = False

    @property
    def oldest(self) -> int:
        return self._channel.oldest if self._channel is not None else 0

    @property
    def is_stuck(self) -> bool:
        """Return whether further messages would fail: one was refused, or not confirmed in time and is
        unconfirmed still.
        """
        if self._late_since and not self.oldest:
            self._late_since = 0.0
        return bool(self._late_since or self._refused_at)

    @property
    def has_expired(self) -> bool:
        """Return whether the channel is to be replaced, because its further messages would fail.

        RabbitMQ 3.10: a channel whose first message for a quorum queue arrives during the election of a
        leader refuses all messages for the queue, also later.
        """
        now = self._clock()
        if self._refused_at and now - self._refused_at > OWN_SECONDS:
            return True
        return self.is_stuck and bool(self._late_since) and now - self._late_since > RENEWED_SECONDS

    async def publish(self, post: Post, seconds: float) -> Outcome:
        """Publish a message; return "late" if the broker neither confirms nor refuses it within `seconds`,
        and "interrupted" if `retire` was called before.
        """
        self._publishing += 1
        try:
            channel = await self._opened()
            while True:
                while channel.is_blocked:
                    await asyncio.sleep(_POLL_SECONDS)
                limit = asyncio.timeout(seconds)
                try:
                    async with limit:
                        await channel.publish(post)
                    return "confirmed"
                except NotTaken:
                    self._refused_at = self._clock()
                    return "refused"
                except _Interrupted:
                    return "interrupted"
                except TimeoutError:
                    if not limit.expired():
                        raise
                    if not channel.is_blocked:
                        self._late_since = self._late_since or self._clock()
                        return "late"
        finally:
            self._publishing -= 1
            self._close_if_unused()

    def is_oldest(self, post: Post) -> bool:
        """Return whether no unconfirmed message of this channel is older."""
        return self._channel is not None and self._channel.oldest_id == post.properties.message_id

    def retire(self, *, interrupt: bool = False) -> None:
        """Close the channel as soon as no message is being published on it; with `interrupt`, raise
        _Interrupted in the publishers of its unconfirmed messages.
        """
        self._is_retired = True
        if interrupt and self._channel is not None:
            self._channel.fail_confirms(_Interrupted())
        self._close_if_unused()

    async def _opened(self) -> BulkChannel:
        async with self._opening:
            if self._channel is None or self._channel.closed:
                self._channel = await BulkChannel().open(self.session.connection, confirms=True)
                self._late_since = self._refused_at = 0.0
            return self._channel

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._publishing and self._channel is not None and not self._link.closed:
            channel, self._channel = self._channel, None
            if not channel.closed:
                self._link.spawn(_close(channel))


async def _close(channel: BulkChannel) -> None:
    """Close a channel, which may be blocked by a queue for about a minute."""
    try:
        with suppress(TimeoutError):
            await channel.close(_CLOSING_SECONDS)
    except BROKEN as problem:
        if cancelled_by_us(problem):
            raise
