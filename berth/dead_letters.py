"""Replays dead letters, for the command line and for the control room."""

from collections.abc import Callable, Collection

import msgspec

from bus import acts, topics
from bus.clock import Clock
from bus.errors import Undecodable, Unroutable
from bus.protocol import DeadLetter, Envelope, Transport, decode
from bus.vocabulary import Message
from bus.worker import cell_of


def _type_named(name: str) -> type[Message] | None:
    if name in topics.TOPIC_NAMED:
        return topics.TOPIC_NAMED[name].message
    return next((query.asks for query in topics.QUERIES if query.asks.__name__ == name), None)


def obstacle(letter: DeadLetter, *, as_operator: bool = False) -> str:
    """Return why a dead letter may not be replayed, "" if it may. With `as_operator` it is published as a
    message of the operator's, so its sender may be anybody.
    """
    if letter.cell and cell_of(letter.queue) != letter.cell:
        whose = f"of cell {letter.cell}" if letter.cell != "?" else "of an unknown cell"
        return f"it is {whose}, and the queue {letter.queue!r} is not"
    if letter.sender and not as_operator:
        return (
            f"it was refused because of its sender, {letter.sender!r}, and would be refused again; "
            "`berth system dead replay --as-operator` publishes it with your rights"
        )
    return ""


def act_of(letter: DeadLetter) -> str:
    """Return the name of the act for which an operator needs the role to publish this letter as a message of
    the operator: the letter's own act, if it needs a higher role than the replay of dead letters. Messages
    between workers need the role `admin`.
    """
    kind = _type_named(letter.type)
    if kind is None and not letter.type:  # a sender without berth's libraries names no type
        kind = next((row.message for row in topics.TOPICS if letter.queue.endswith(f":{row.pattern}")), None)
    try:
        act = acts.act_of(decode(kind, letter.body)) if kind is not None else None
    except Undecodable:
        act = None
    if act is None:
        return "repair"
    return act.name if act.role == "admin" else "dead letters"


async def replay(
    transport: Transport,
    clock: Clock,
    ids: Collection[str] | None,
    stays: Callable[[str], None],
    *,
    as_operator: bool = False,
) -> int:
    """Publish dead letters (`ids` None: all) again and delete them; return how many. Call `stays` with the
    reason for each dead letter that cannot be published and is kept.

    A message keeps the routing key that the broker has verified, so its consumer judges the sender again.
    With `as_operator` it gets the key of its queue, to which only berth's own users may publish.
    """

    async def rescue(letter: DeadLetter) -> bool:
        if why := obstacle(letter, as_operator=as_operator):
            stays(f"{letter.id} stays: {why}")
            return False
        envelope = Envelope(
            id=letter.id,
            type=letter.type,
            key=letter.queue if as_operator else letter.key or letter.queue,
            body=msgspec.Raw(letter.body),
            correlation=letter.correlation,
            sent_at=clock.now(),
            first_died=letter.first_died,
            framed=False,
        )
        try:
            await transport.delay(letter.queue, envelope, 0.0)
        except (Unroutable, Undecodable) as problem:
            no_queue = isinstance(problem, Unroutable)
            why = f"there is no queue {letter.queue!r}" if no_queue else f"its body is {problem}"
            stays(f"{letter.id} stays: {why}")
            return False
        return True

    return await transport.remove_dead_letters(ids, rescue)
