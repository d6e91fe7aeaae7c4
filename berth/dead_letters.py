"""Replays dead letters, for the command line and for the control room."""

from collections.abc import Callable, Collection

import msgspec

from bus.clock import Clock
from bus.errors import Undecodable, Unroutable
from bus.protocol import DeadLetter, Envelope, Transport
from bus.worker import cell_of


async def replay(
    transport: Transport, clock: Clock, ids: Collection[str] | None, stays: Callable[[str], None]
) -> int:
    """Publish dead letters (`ids` None: all) again and delete them; return how many. Call `stays` with the
    reason for each dead letter that cannot be published and is kept.
    """

    async def rescue(letter: DeadLetter) -> bool:
        if letter.cell and cell_of(letter.queue) != letter.cell:
            whose = f"of cell {letter.cell}" if letter.cell != "?" else "of an unknown cell"
            stays(f"{letter.id} stays: it is {whose}, and the queue {letter.queue!r} is not")
            return False
        envelope = Envelope(
            id=letter.id,
            type=letter.type,
            key=letter.key,
            body=msgspec.Raw(letter.body),
            correlation=letter.correlation,
            sent_at=clock.now(),
            first_died=letter.first_died,
            framed=False,
        )
        try:
            await transport.send(letter.queue, envelope, expected=True)
        except (Unroutable, Undecodable) as problem:
            no_queue = isinstance(problem, Unroutable)
            why = f"there is no queue {letter.queue!r}" if no_queue else f"its body is {problem}"
            stays(f"{letter.id} stays: {why}")
            return False
        return True

    return await transport.remove_dead_letters(ids, rescue)
