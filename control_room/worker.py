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
from control_room.events import Events

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

COMMANDS: frozenset[type[Message]] = frozenset({BuildCancelRequested, MoveRequested, MoveSteered})


def control_room(events: Events, serves: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()) -> Worker:
    return Worker(
        "control_room",
        consumes=[
            # also ends with a `reply_to` as the last part of the key
            on_many(
                Address(topics.BUILD_ENDED, "build.ended.#"), events.on_builds_ended, private=True, batch=256
            ),
            on(Address(topics.BUILD_UNPLACEABLE, "build.unplaceable.#"), events.on_unplaceable, private=True),
            on(Address(topics.MOVE_ENDED, "move.ended.#"), events.on_move_ended, private=True),
            on(Address(topics.MOVE_TOLD, "move.told.#"), events.on_move_changed, private=True),
            on(topics.HOST_FAILED, events.on_host_failed, private=True),
            on(topics.HOST_REPORTED, events.on_host_reported, private=True),
            on(topics.IRONIC_SPOKE, events.on_ironic_events, private=True),
            on(topics.SCHEDULER_ALIVE, events.on_scheduler_alive, private=True),
        ],
        asks=ASKS,
        announces=COMMANDS,
        runs=serves,
    )
