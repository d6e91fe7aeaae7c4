"""Publishes messages and sends queries for clients that have a role, if the role permits them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec import structs

from bus import acts, topics
from bus.audit_trail import Operator
from bus.clock import Clock
from bus.context import stored_context
from bus.delivery.recording import Caller, caller
from bus.errors import UNANSWERED, AnswerRefused, OperationRefused, Undecodable
from bus.protocol import Ask, encode
from bus.reading import read
from bus.sql.database import Database
from bus.topics import ANYONE, Query, Topic, client_key
from bus.vocabulary import Message
from features.clients.messages import ClientRelay, RegisteredClient, RelayAnswered
from features.clients.relayed_bus import relay_problem
from features.clients.store import registered
from scheduler_worker.extension import Publish


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
class OperatorRequests:
    """Relays the messages of clients that have a role. As for an operator's command, the bus of `publish` and
    `asker` refuses a message that the role does not permit, and records each act in the audit trail.
    """

    database: Database
    publish: Publish
    asker: Callable[..., Ask[Any, Any]]
    clock: Clock

    async def relay(self, asked: ClientRelay) -> RelayAnswered:
        """Publish a message for a client whose role permits the act; record the act or its refusal."""
        async with self.database.read() as tx:
            found = await registered(tx, [asked.client])
        client = found[0] if found else None
        operator = Caller(
            operator=operator_of(asked.client, client),
            interface="bus",
            through=f"client.{asked.client}",
            request=stored_context(asked).id,
            nonce=self.clock.uuid(),
        )
        token = caller.set(operator)
        try:
            return await self._relayed(asked)
        except (OperationRefused, *UNANSWERED) as problem:
            return relay_problem(problem)
        finally:
            caller.reset(token)

    async def _relayed(self, asked: ClientRelay) -> RelayAnswered:
        way = relayed().get(asked.to)
        if way is None:
            raise OperationRefused(f"{asked.to} is no topic or query for clients with a role")
        message = _decoded(way, asked.message)
        if isinstance(way, Topic):
            await self.publish(_answered_to(asked.client, message))
            return RelayAnswered()
        answer = await self.asker(way, asked.seconds)(message)
        return RelayAnswered(answer=encode(answer).decode())


def operator_of(name: str, client: RegisteredClient | None) -> Operator:
    """Return the operator in whose name a client acts: with the client's role, cells and projects, or without
    any of them if `client` is None, because the client is not registered.
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
