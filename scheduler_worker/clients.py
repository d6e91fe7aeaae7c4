"""Accepts or refuses the requests and queries of clients, according to the projects of each client.

A client can publish only with its routing key, so the broker has verified the sender `client` of each
message. A build of another project is treated exactly as an unknown one. Permitted messages are published
again with the routing keys of operators, so no other handler distinguishes clients from operators.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from msgspec import structs

from bus import acts, topics
from bus.audit_trail import ActRecord, Operator
from bus.clients import (
    ClientAnswered,
    ClientAsked,
    ClientEditAnswered,
    ClientEditRequested,
    ClientQuery,
    ClientRelay,
    ClientRequested,
    ClientsFound,
    FindClients,
    FindProjects,
    Known,
    NotAllowed,
    Permit,
    Projects,
    ProjectsFound,
    RegisteredClient,
    RelayAnswered,
    check_project,
    client_key,
    permitted_boot,
    project_of,
)
from bus.clock import Clock
from bus.context import is_repeated, stored_context
from bus.decisions import FindRefused, RefusedFound
from bus.delivery.recording import Caller, RecordingBus, caller, in_messages, relay_problem
from bus.errors import UNANSWERED, AnswerRefused, OperationRefused, Undecodable, Unroutable
from bus.invalid_requests import in_words, read, refused, with_flat_parts
from bus.messages import BuildCancelRequested, BuildRequested
from bus.parts import converted, problem_of
from bus.protocol import encode
from bus.queries import BuildsFound, DecisionFound, FindBuilds, FindDecision, FindInstances, InstancesFound
from bus.resources import AllocationsFound, FindAllocations, FindUsages, UsagesFound
from bus.sql.database import Database
from bus.topics import ANYONE, Query, Topic
from bus.vocabulary import Id, Message
from scheduler_worker.explanations import Explanations
from scheduler_worker.owners import Owners
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.store.decisions import bind, registered

# Section: publishes messages and sends queries for clients that have a role, if the role permits them.


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
    """Relays the messages of clients that have a role. As for an operator's command, `bus` refuses a message
    that the role does not permit, and records each act in the audit trail.
    """

    database: Database
    bus: RecordingBus

    async def relay(self, asked: ClientRelay) -> RelayAnswered:
        async with self.database.read() as tx:
            found = await registered(tx, [asked.client])
        client = found[0] if found else None
        operator = Caller(
            operator=operator_of(asked.client, client),
            interface="bus",
            through=f"client.{asked.client}",
            request=stored_context(asked).id,
            nonce=self.bus.clock.uuid(),
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
            await self.bus.publish(_answered_to(asked.client, message))
            return RelayAnswered()
        answer = await self.bus.asker(way, asked.seconds)(message)
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


@dataclass(eq=False)
class ClientRequests:
    database: Database
    placement: PlacementQueries
    cells: CellQueries
    owners: Owners
    clock: Clock
    explanations: Explanations
    permits: Mapping[type[Message], Permit]  # of features, for requests of these types
    queries: Mapping[str, ClientQuery]  # of features, by name

    def __post_init__(self) -> None:
        self._permits: Mapping[type[Message], Permit] = {
            BuildRequested: _permit_boot,
            BuildCancelRequested: _permit_delete,
            **self.permits,
        }
        self._queries: Mapping[str, ClientQuery] = {
            "builds": ClientQuery(FindBuilds, self._builds),
            "instances": ClientQuery(FindInstances, self._instances),
            "ended_without_host": ClientQuery(FindRefused, self._ended_without_host),
            "decision": ClientQuery(FindDecision, self._decision),
            "allocations": ClientQuery(FindAllocations, self._allocations),
            "usages": ClientQuery(FindUsages, self._usages),
            **self.queries,
        }

    async def edit(self, order: ClientEditRequested) -> ClientEditAnswered:
        async with self.database.write() as tx:
            before = await registered(tx, [order.client])
            client = RegisteredClient(
                name=order.client, projects=order.projects, role=order.role, cells=order.cells
            )
            await bind(tx, client)
        return ClientEditAnswered(before=before[0] if before else None)

    async def clients(self, question: FindClients) -> ClientsFound:
        async with self.database.read() as tx:
            return ClientsFound(clients=tuple(await registered(tx, question.names)))

    async def projects(self, question: FindProjects) -> ProjectsFound:
        return await self.owners.find(question)

    async def request_many(self, asked: Sequence[ClientRequested]) -> Sequence[Message | Sequence[Message]]:
        """Return for each client request what to publish: the same request as from an operator, or a refusal
        to the client.
        """
        clients = await self._registered({client.client for client in asked})
        known = await self._known(*acts.ids_of(request.message for request in asked))
        judged = [await self._judged(client, clients.get(client.client), known) for client in asked]
        return self._with_records(asked, judged, clients)

    def _with_records(
        self,
        asked: Sequence[ClientRequested],
        judged: Sequence[Message],
        clients: Mapping[str, RegisteredClient],
    ) -> list[Message | Sequence[Message]]:
        """Return the messages `judged`, the first together with the audit records of all requests."""
        records = [
            _record(request, outcome, clients.get(request.client), self.clock)
            for request, outcome in zip(asked, judged, strict=True)
        ]
        return [(judged[0], *in_messages(records)), *judged[1:]]

    async def _judged(
        self, asked: ClientRequested, client: RegisteredClient | None, known: Projects
    ) -> Message:
        act, key = asked.message, client_key(asked.client, asked.message.reply_to)
        try:
            if client is None:
                raise NotAllowed(f"client {asked.client} is not registered")
            if act.reply_to not in ("", key):
                allowed = f"{asked.client}, or {asked.client}_ and a name"
                raise NotAllowed(f"reply_to: {allowed}, not {act.reply_to}")
            return await self._permits[type(act)](structs.replace(act, reply_to=key), client, known)
        except NotAllowed as why:
            return refused(act, str(why), "client", key)

    async def ask(self, asked: ClientAsked) -> ClientAnswered:
        client = (await self._registered({asked.client})).get(asked.client)
        try:
            if client is None:
                raise NotAllowed(f"client {asked.client} is not registered")
            return await self._answer(asked, client)
        except NotAllowed as refused:
            return ClientAnswered(refused=str(refused))
        except Unroutable:
            return ClientAnswered(refused="no such cell answers")

    async def _answer(self, asked: ClientAsked, client: RegisteredClient) -> ClientAnswered:
        query = self._queries.get(asked.query)
        if query is None:
            raise NotAllowed(f"query: no {asked.query}, only {', '.join(self._queries)}")
        try:
            question = asked.message
            if not isinstance(question, query.asks):
                question = with_flat_parts(converted(query.asks, question), question)
        except msgspec.ValidationError as problem:
            raise NotAllowed(in_words(problem_of(problem, "message"))) from None
        return ClientAnswered(answer=await query.answer(question, client, self._known))

    async def _builds(self, question: FindBuilds, client: RegisteredClient, known: Known) -> BuildsFound:
        builds = (await self.cells.builds(question)).builds
        mine = [build for build in builds if build.placed.spec.project in client.projects]
        return BuildsFound(builds=tuple(mine))

    async def _instances(
        self, question: FindInstances, client: RegisteredClient, known: Known
    ) -> InstancesFound:
        project = project_of(client, question.project)
        return await self.cells.instances(structs.replace(question, project=project))

    async def _ended_without_host(
        self, question: FindRefused, client: RegisteredClient, known: Known
    ) -> RefusedFound:
        project = project_of(client, question.project)
        return await self.explanations.refused(structs.replace(question, project=project))

    async def _decision(
        self, question: FindDecision, client: RegisteredClient, known: Known
    ) -> DecisionFound:
        decision = await self.explanations.decision(question)
        project = decision.request.project if decision.request is not None else None
        if project is None and decision.parts.builds:
            project = (await known((), decision.parts.builds)).get(decision.parts.builds[0])
        mine = tuple(each for each in decision.held if each.project in client.projects)
        return structs.replace(decision, held=mine) if project in client.projects else DecisionFound()

    async def _allocations(
        self, question: FindAllocations, client: RegisteredClient, known: Known
    ) -> AllocationsFound:
        if not question.consumers:
            return AllocationsFound(consumers=(), generations={})
        held = await self.placement.allocations(FindAllocations(consumers=question.consumers))
        mine = [consumer for consumer in held.consumers if consumer.project in client.projects]
        return AllocationsFound(consumers=tuple(mine), generations={})

    async def _usages(self, question: FindUsages, client: RegisteredClient, known: Known) -> UsagesFound:
        project = project_of(client, question.project)
        return await self.placement.usages(structs.replace(question, project=project))

    async def _registered(self, names: Collection[str]) -> dict[str, RegisteredClient]:
        async with self.database.read() as tx:
            return {client.name: client for client in await registered(tx, names)}

    async def _known(self, new: Collection[Id], existing: Collection[Id]) -> Projects:
        question = FindProjects(new=tuple(sorted(new)), existing=tuple(sorted(existing)))
        return (await self.owners.find(question)).projects


async def _permit_boot(request: BuildRequested, client: RegisteredClient, known: Projects) -> BuildRequested:
    return permitted_boot(request, client, known)


async def _permit_delete(
    request: BuildCancelRequested, client: RegisteredClient, known: Projects
) -> BuildCancelRequested:
    check_project(request.build, client, known)
    return structs.replace(request, anywhere=True)


def _record(
    asked: ClientRequested, outcome: Message, client: RegisteredClient | None, clock: Clock
) -> ActRecord:
    """Return the audit record of a client's request. Its id is new, because a client chooses the ids of its
    messages, and may use one again.
    """
    request = asked.message
    act, operator = acts.act_of(request), operator_of(asked.client, client)
    # clients with projects need no role, so `operator` stands for the role
    operator = structs.replace(operator, role="operator" if client else "", is_program=True)
    message = stored_context(asked).id
    caller = Caller(operator=operator, interface="bus", through=f"client.{asked.client}", request=message)
    record = caller.record(clock.uuid(), clock.now(), act.name if act else "", acts.describe(request))
    denied = type(outcome) is not type(request)
    return structs.replace(
        record,
        # boot requests are not copied: the decision or the cell's record contains them
        asked="" if isinstance(request, BuildRequested) else acts.asked_json(request),
        outcome="denied" if denied else "done",
        repeated=is_repeated(asked),
        detail=acts.shortened(getattr(outcome, "reason", "") or getattr(outcome, "why", ""))
        if denied
        else "",
    )
