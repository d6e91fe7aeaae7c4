"""Publishes messages and sends queries for clients that have a role, if the role permits them."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec import structs

from bus import acts, topics
from bus.addressing import ANYONE, Query, Topic
from bus.audit_trail import Operator
from bus.clients import ClientRelay, RegisteredClient, RelayAnswered, client_key
from bus.context import stored_context
from bus.delivery.recording import Caller, RecordingBus, caller
from bus.delivery.relaying import problem_of
from bus.errors import UNANSWERED, AnswerRefused, OperationRefused, Undecodable
from bus.protocol import encode
from bus.sql.database import Database
from bus.unknown_fields import read
from bus.vocabulary import Message
from scheduler_worker.store.decisions import registered


@cache
def relayed() -> dict[str, Query[Any, Any] | Topic[Any]]:
    """Return the topics and queries of which messages are relayed, by pattern and name."""
    acting = {message for act in acts.ACTS for message in act.messages}
    return {
        **{topic.pattern: topic for topic in topics.TOPICS if topic.message in acting},
        **{
            query.name: query
            for query in topics.QUERIES
            if (query.source == ANYONE or query.asks in acting) and not (query.within or query.of_client)
        },
    }


@dataclass(eq=False)
class RoleDoor:
    """Relays the messages of clients that have a role. As for an operator's command, `bus` refuses a message
    that the role does not permit, and records each act in the audit trail.
    """

    database: Database
    bus: RecordingBus

    async def relay(self, asked: ClientRelay) -> RelayAnswered:
        async with self.database.read() as tx:
            found = await registered(tx, [asked.client])
        client = found[0] if found else None
        door = Caller(
            operator=operator_of(asked.client, client),
            door="bus",
            through=f"client.{asked.client}",
            request=stored_context(asked).id,
            nonce=self.bus.clock.uuid(),
        )
        token = caller.set(door)
        try:
            return await self._relayed(asked)
        except (OperationRefused, *UNANSWERED) as problem:
            return problem_of(problem)
        finally:
            caller.reset(token)

    async def _relayed(self, asked: ClientRelay) -> RelayAnswered:
        way = relayed().get(asked.to)
        if way is None:
            raise OperationRefused(f"{asked.to} is no topic or query for clients with a role")
        message = _decoded(way, asked.message)
        if isinstance(way, Topic):
            await self.bus.publish(_answered_to(asked.client, message))
            return RelayAnswered()
        answer = await self.bus.asker(way, asked.seconds)(message)
        return RelayAnswered(answer=encode(answer).decode())


def operator_of(name: str, client: RegisteredClient | None) -> Operator:
    """Return a client as an operator with the client's role, cells and projects; None is a client without a
    role.
    """
    if client is None:
        return Operator(name=name, known_by="client")
    return Operator(
        name=name, role=client.role, known_by="client", cells=client.cells, projects=client.projects
    )


def _answered_to(client: str, message: Message) -> Message:
    if not hasattr(message, "reply_to"):
        return message
    return structs.replace(message, reply_to=client_key(client, message.reply_to))


def _decoded(way: Query[Any, Any] | Topic[Any], text: str) -> Message:
    kind: type[Message] = way.asks if isinstance(way, Query) else way.message
    try:
        return read(kind, text.encode())
    except Undecodable as problem:
        raise AnswerRefused(str(problem)) from None
