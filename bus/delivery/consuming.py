"""Rows that consume a topic, whose handlers return messages to publish, and rows that answer queries, whose
handlers return the answer or raise the refusal.
"""

import logging
from collections.abc import Sequence

from bus.context import envelope_of, follow
from bus.delivery.settling import Made, ServedRow
from bus.delivery.suspects import Process, Suspects
from bus.delivery.verdicts import refusal_of
from bus.errors import Undecodable, Unroutable
from bus.protocol import Envelope
from bus.topics import TOPIC_OF
from bus.vocabulary import Message
from bus.worker import Answers, On, Undeclared, Worker, messages_of, reply_prefix

Emit = tuple[Envelope | None, Message]  # its cause (None for a timer), and the message to publish


class Emitter:
    def __init__(self, worker: str, process: Process) -> None:
        self.worker = worker
        self._transport = process.transport
        self._clock = process.clock

    async def emit(self, made: Sequence[Emit], declared: frozenset[type[Message]]) -> None:
        """Publish messages and wait for the broker's confirms; refuse types that the row does not declare."""
        if not made:
            return
        envelopes, expected = [], []
        for cause, message in made:
            if type(message) not in declared:
                raise Undeclared(
                    f"{self.worker} emitted {type(message).__name__}, which its row does not declare"
                )
            envelopes.append(envelope_of(message, self._clock, cause))
            expected.append(TOPIC_OF[type(message)].expected)
        await self._transport.publish(envelopes, expected=expected)


log = logging.getLogger(__name__)


class ConsumedRow(ServedRow):
    row: On

    def __init__(self, row: On, worker: Worker, process: Process, suspects: Suspects) -> None:
        super().__init__(row, worker, process, suspects)
        self._emitter = Emitter(worker.name, process)

    def _key_of(self, message: Message) -> str:
        return self.row.address.topic.key(message)

    async def _publish(self, made: Made) -> None:
        try:
            await self._emitter.emit(made, self.row.emits)
        except Unroutable:
            cause = made[0][0]
            of_several = any(envelope is not cause for envelope, _ in made)
            if self.row.unheard is None or of_several or cause.attempt < self.row.unheard_after:
                raise
            for _, message in made:
                await self._publish_or_undo(cause, message)

    async def _publish_or_undo(self, cause: Envelope, message: Message) -> None:
        """Publish a message; without a consumer, publish what the worker returns after undoing its work."""
        assert self.row.unheard is not None
        try:
            await self._emitter.emit([(cause, message)], self.row.emits)
        except Unroutable as nobody:
            log.warning("%s: given up: %s", self.queue.name, nobody)
            instead = messages_of(await self.row.unheard(message))
            await self._emitter.emit([(cause, one) for one in instead], self.row.emits)

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        return False  # a message expects no reply, whatever its reply address


class AnsweredRow(ServedRow):
    def __init__(self, row: Answers, worker: Worker, process: Process, suspects: Suspects) -> None:
        super().__init__(row, worker, process, suspects)
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
        """Return whether the reply address belongs to this query: permissions reach other keys too."""
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
        waited_for = [answer for answer in answers if answer.key]
        if waited_for:
            await self._transport.publish(waited_for, expected=[False] * len(waited_for))
