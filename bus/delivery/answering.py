"""Rows that answer queries: the handler's result, or its refusal, is sent to the requester."""

from collections.abc import Sequence

from bus.clock import Clock
from bus.context import follow
from bus.delivery.refusals import refusal_of
from bus.delivery.settling import Made, ServedRow
from bus.delivery.suspects import Suspects
from bus.errors import Undecodable
from bus.protocol import Envelope, Transport
from bus.vocabulary import Message
from bus.worker import Answers, Worker, reply_prefix


class AnsweredRow(ServedRow):
    def __init__(
        self,
        row: Answers,
        worker: Worker,
        replica: str,
        transport: Transport,
        clock: Clock,
        suspects: Suspects,
    ) -> None:
        super().__init__(row, worker, replica, transport, clock, suspects)
        self._query = row.query
        self._replies = reply_prefix(row.query, row.cell)

    def _key_of(self, message: Message) -> str:
        return f"ask.{self._query.key(message)}"

    def _check(self, envelope: Envelope, message: Message) -> None:
        super()._check(envelope, message)
        if not self._may_answer(envelope):
            replies = self._replies_to(envelope)
            raise Undecodable(f"answers to this question go to {replies}…, not to {envelope.reply_to}")

    def _may_answer(self, envelope: Envelope) -> bool:
        """Return whether the reply address is one for this query: the worker's permissions must not serve for
        other keys.
        """
        return not envelope.reply_to or envelope.reply_to.startswith(self._replies_to(envelope))

    def _replies_to(self, envelope: Envelope) -> str:
        if not self._query.of_client:
            return self._replies
        return reply_prefix(self._query, envelope.key.rpartition(".")[2])  # the key is the verified sender

    async def _publish(self, made: Made) -> None:
        await self._reply(
            [
                follow(message, cause.reply_to, self._clock, framed=True, cause=cause)
                for cause, message in made
            ]
        )

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        if not envelope.reply_to or not self._may_answer(envelope):
            return False
        await self._reply([refusal_of(envelope, why, self._clock, again=again)])
        return True

    async def _reply(self, answers: Sequence[Envelope]) -> None:
        """Send the answers to requesters that still wait; a query may lack a reply address."""
        waited_for = [answer for answer in answers if answer.key]
        if waited_for:
            await self._transport.publish(waited_for, expected=[False] * len(waited_for))
