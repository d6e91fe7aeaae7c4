"""The part of clients in a scheduler: their requests, their queries, and the messages that it relays."""

from typing import Any

from bus import topics
from bus.invalid_requests import InvalidRequest
from bus.topics import TOPIC_OF, Topic
from bus.worker import WorkerRows, answers, on_many
from features.clients.client_requests import ClientRequests
from features.clients.messages import (
    CLIENT_ASKED,
    CLIENT_RELAY,
    CLIENT_REQUESTED,
    CLIENTS,
    EDIT_CLIENT,
    actions,
)
from features.clients.operator_requests import OperatorRequests
from scheduler_worker.extension import ForScheduler, SchedulerNeeds, SchedulerPart


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    scheduler, database = needs.scheduler, needs.database
    clients = ClientRequests(
        database, scheduler, needs.cells, needs.owners, needs.explanations, needs.asker, needs.parts
    )
    roles = OperatorRequests(database, needs.publish, needs.asker, scheduler.clock)
    return SchedulerPart(
        rows=WorkerRows(
            consumes=[
                on_many(
                    CLIENT_REQUESTED,
                    clients.request_many,
                    emits=[*_permitted_and_refused(), topics.ACTS_RECORDED],
                    concurrency=4,  # so that a query to a silent cell does not delay other clients
                )
            ],
            answers=[
                answers(CLIENT_ASKED, clients.ask, concurrency=16, client="*"),
                answers(CLIENT_RELAY, roles.relay, concurrency=16, client="*"),
                answers(CLIENTS, clients.clients),
                answers(EDIT_CLIENT, clients.edit),
            ],
        )
    )


def _permitted_and_refused() -> list[Topic[Any]]:
    """Return the topics of the requests that clients may send, and of their refusals."""
    nothing = InvalidRequest(cell="", reply_to="", why="")
    return [
        topic for kind in actions().values() for topic in (kind.topic, TOPIC_OF[type(kind.refused(nothing))])
    ]


PART = ForScheduler(part)
