"""The control room's table of messages. It counts ends of builds, and asks for the rest while pages are open.

It reads no queue of requests, or publishers would believe that a scheduler had received theirs.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from bus import topics
from bus.messages import BuildCancelRequested
from bus.moves import MoveRequested, MoveSteered
from bus.routing import Address
from bus.vocabulary import Message
from bus.worker import Worker, on, on_many
from control_room.events import Hearing

ASKS = (
    topics.CELLS,
    topics.PROVIDERS,
    topics.EDIT,
    topics.EDIT_NAME,
    topics.TREES,
    topics.CHANGES,
    topics.AGGREGATES,
    topics.WAITING,
    topics.DECISION,
    topics.WHAT_IF,
    topics.HOST_HEALTH,
    topics.FIND_BUILDS,
    topics.FIND_INSTANCES,
    topics.FIND_MOVES,
    topics.ALLOCATIONS,
)

TELLS: frozenset[type[Message]] = frozenset(  # an operator's reply word
    {BuildCancelRequested, MoveRequested, MoveSteered}
)


def control_room(hearing: Hearing, serves: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()) -> Worker:
    return Worker(
        "control_room",
        consumes=[
            # also ends with a `reply_to` as the last part of the key
            on_many(Address(topics.BUILD_ENDED, "build.ended.#"), hearing.ended, private=True, batch=256),
            on(Address(topics.BUILD_UNPLACEABLE, "build.unplaceable.#"), hearing.unplaceable, private=True),
            on(Address(topics.MOVE_ENDED, "move.ended.#"), hearing.move_ended, private=True),
            on(Address(topics.MOVE_TOLD, "move.told.#"), hearing.move_told, private=True),
            on(topics.HOST_FAILED, hearing.host_failed, private=True),
            on(topics.HOST_REPORTED, hearing.host_reported, private=True),
            on(topics.IRONIC_SPOKE, hearing.ironic_spoke, private=True),
            on(topics.SCHEDULER_ALIVE, hearing.scheduler_alive, private=True),
        ],
        asks=ASKS,
        announces=TELLS,
        runs=serves,
    )
