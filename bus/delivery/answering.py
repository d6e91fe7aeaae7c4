"""A row that answers a query: what its handler returns goes back to whoever asked, and so does a refusal."""

from collections.abc import Sequence

import msgspec

from bus.context import follow
from bus.delivery.settling import Made, ServedRow
from bus.protocol import Envelope


class AnsweredRow(ServedRow):
    async def _say(self, made: Made) -> None:
        await self._reply(
            [
                follow(message, cause.reply_to, self._clock, framed=True, cause=cause)
                for cause, message in made
            ]
        )

    async def _refuse(self, envelope: Envelope, why: str, *, again: bool = False) -> bool:
        if not envelope.reply_to:
            return False
        refusal = Envelope(
            id=self._clock.uuid(),
            type="",
            key=envelope.reply_to,
            body=msgspec.Raw(b"null"),
            correlation=envelope.correlation or envelope.id,
            causation=envelope.id,
            sent_at=self._clock.now(),
            error=why or "no reason was given",
            again=again,
        )
        await self._reply([refusal])
        return True

    async def _reply(self, answers: Sequence[Envelope]) -> None:
        """To whoever still waits; a question may come without an address."""
        waited_for = [answer for answer in answers if answer.key]
        if waited_for:
            await self._transport.publish(waited_for, expected=[False] * len(waited_for))
