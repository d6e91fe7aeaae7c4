"""Accepts or refuses the requests and queries of clients, according to the projects of each client.

A client can publish only with its routing key, so the broker has verified the sender `client` of each
message. A build of another project is treated exactly as an unknown one. Permitted messages are published
again with the routing keys of operators, so no other handler distinguishes clients from operators.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec import structs

from bus import acts
from bus.audit_trail import ActRecord
from bus.clock import Clock
from bus.context import is_repeated, stored_context
from bus.decisions import FindRefused, RefusedFound
from bus.delivery.recording import Caller, in_messages
from bus.errors import Poison, Undecodable, Unroutable
from bus.invalid_requests import refused
from bus.messages import BuildRequested
from bus.named_objects import named_objects
from bus.projects import (
    ClientQuery,
    FindOwners,
    FindProjects,
    NotAllowed,
    ProjectMember,
    ProjectsFound,
    project_of,
)
from bus.protocol import Ask
from bus.queries import (
    BuildsFound,
    DecisionFound,
    FindBuilds,
    FindDecision,
    FindInstances,
    InstancesFound,
    build_for_member,
    instance_for_member,
)
from bus.reading import read_object, with_notes
from bus.resources import AllocationsFound, FindAllocations, FindUsages, UsagesFound
from bus.sql.database import Database
from bus.topics import client_key
from bus.vocabulary import Message, cause_of
from bus.worker import Outcome
from features.clients.messages import (
    ClientAnswered,
    ClientAsked,
    ClientEditAnswered,
    ClientEditRequested,
    ClientRequested,
    ClientsFound,
    FindClients,
    RegisteredClient,
    actions,
)
from features.clients.operator_requests import operator_of
from features.clients.store import bind, registered
from scheduler_worker.extension import CellQueries, Explanations, Owners, Placing, SchedulerPart

STATE_SECONDS = 5.0  # for a cell's answer; the wait also delays requests about other cells


@dataclass(eq=False)
class ClientRequests:
    """Registers clients, and answers their queries with what their projects may read."""

    database: Database
    scheduler: Placing
    cells: CellQueries
    owners: Owners
    explanations: Explanations
    asker: Callable[..., Ask[Any, Any]]
    parts: Callable[[], Sequence[SchedulerPart]]  # of all features: they are made before the first request

    @cached_property
    def _queries(self) -> Mapping[str, ClientQuery]:
        of_features = [part.client_queries for part in self.parts()]
        return {
            "builds": ClientQuery(FindBuilds, self._builds),
            "instances": ClientQuery(FindInstances, self._instances),
            "ended_without_host": ClientQuery(FindRefused, self._ended_without_host),
            "decision": ClientQuery(FindDecision, self._decision),
            "allocations": ClientQuery(FindAllocations, self._allocations),
            "usages": ClientQuery(FindUsages, self._usages),
            **{name: query for some in of_features for name, query in some.items()},
        }

    async def edit(self, order: ClientEditRequested) -> ClientEditAnswered:
        """Register, change or remove a client; return the former registration."""
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

    async def request_many(self, asked: Sequence[ClientRequested]) -> Sequence[Outcome]:
        """Return for each client request what to publish: the same request as from an operator, or a refusal
        to the client. An invalid request becomes a dead letter, and is answered.
        """
        requests = [_request_in(each) for each in asked]
        valid = [
            (each, request)
            for each, request in zip(asked, requests, strict=True)
            if not isinstance(request, Poison)
        ]
        if not valid:
            return requests
        clients = await self._registered({each.client for each, _ in valid})
        question = acts.owners_query([request for _, request in valid], places=False)
        owners = await self.owners.find(question) if question is not None else ProjectsFound()
        judged = [
            await self._judged(request, each.client, clients.get(each.client), owners)
            for each, request in valid
        ]
        records = [
            _record(each, request, outcome, clients.get(each.client), self.scheduler.clock)
            for (each, request), outcome in zip(valid, judged, strict=True)
        ]
        outcomes: Iterator[Outcome] = iter([(judged[0], *in_messages(records)), *judged[1:]])
        return [request if isinstance(request, Poison) else next(outcomes) for request in requests]

    async def _judged(
        self, act: Any, name: str, client: RegisteredClient | None, owners: ProjectsFound
    ) -> Message:
        """Return the act as of an operator, or its refusal."""
        key = client_key(name, act.reply_to)
        try:
            member = _member(name, client)
            if act.reply_to not in ("", key):
                raise NotAllowed(f"reply_to: {name}, or {name}_ and a name, not {act.reply_to}")
            permitted: Message = acts.permitted(
                member, structs.replace(act, reply_to=key), owners, await self._state(act, member, owners)
            )
            return permitted
        except NotAllowed as why:
            return refused(act, str(why), "client", key)

    async def _state(self, act: Message, member: ProjectMember, owners: ProjectsFound) -> Message | None:
        """Return the state that decides about an act; None if owners decide, or if no such cell answers."""
        state = acts.deciding_state(act, member, owners)
        if state is None:
            return None
        query, question = state
        try:
            answer: Message = await self.asker(query, STATE_SECONDS)(question)
        except Unroutable:
            return None
        return answer

    async def ask(self, asked: ClientAsked) -> ClientAnswered:
        """Answer a query of a client, or refuse it with the reason."""
        client = (await self._registered({asked.client})).get(asked.client)
        try:
            return await self._answer(asked, _member(asked.client, client))
        except NotAllowed as refused:
            return ClientAnswered(refused=str(refused))
        except Unroutable:
            return ClientAnswered(refused="no such cell answers")

    async def _answer(self, asked: ClientAsked, client: ProjectMember) -> ClientAnswered:
        query = self._queries.get(asked.query)
        if query is None:
            raise NotAllowed(f"query: no {asked.query}, only {', '.join(self._queries)}")
        try:
            question = read_object(query.asks, asked.message, "message")
        except Undecodable as problem:
            raise NotAllowed(str(problem)) from None
        acts.check_projects(client, named_objects(question))
        return ClientAnswered(answer=await query.answer(question, client, self.owners.find))

    async def _builds(self, question: FindBuilds, client: ProjectMember, find: FindOwners) -> BuildsFound:
        builds = (await self.cells.builds(question)).builds
        mine = [build for build in builds if build.placed.spec.project in client.projects]
        return BuildsFound(builds=tuple(map(build_for_member, mine)))

    async def _instances(
        self, question: FindInstances, client: ProjectMember, find: FindOwners
    ) -> InstancesFound:
        project = project_of(client, question.project)
        found = await self.cells.instances(structs.replace(question, project=project))
        mine = tuple(instance_for_member(each) for each in found.instances if each.project == project)
        return structs.replace(found, instances=mine)

    async def _ended_without_host(
        self, question: FindRefused, client: ProjectMember, find: FindOwners
    ) -> RefusedFound:
        project = project_of(client, question.project)
        return await self.explanations.refused(structs.replace(question, project=project))

    async def _decision(
        self, question: FindDecision, client: ProjectMember, find: FindOwners
    ) -> DecisionFound:
        decision = await self.explanations.decision(question)
        project = decision.request.project if decision.request is not None else None
        if project is None and decision.parts.builds:
            owners = await find(FindProjects(existing=decision.parts.builds))
            project = owners.projects.get(decision.parts.builds[0])
        mine = tuple(each for each in decision.held if each.project in client.projects)
        return structs.replace(decision, held=mine) if project in client.projects else DecisionFound()

    async def _allocations(
        self, question: FindAllocations, client: ProjectMember, find: FindOwners
    ) -> AllocationsFound:
        if not question.consumers:
            return AllocationsFound(consumers=(), generations={})
        held = await self.scheduler.placement.allocations(FindAllocations(consumers=question.consumers))
        mine = [consumer for consumer in held.consumers if consumer.project in client.projects]
        return AllocationsFound(consumers=tuple(mine), generations={})

    async def _usages(self, question: FindUsages, client: ProjectMember, find: FindOwners) -> UsagesFound:
        project = project_of(client, question.project)
        return await self.scheduler.placement.usages(structs.replace(question, project=project))

    async def _registered(self, names: Collection[str]) -> dict[str, RegisteredClient]:
        async with self.database.read() as tx:
            return {client.name: client for client in await registered(tx, names)}


def _member(name: str, client: RegisteredClient | None) -> ProjectMember:
    if client is None:
        raise NotAllowed(f"client {name} is not registered")
    return ProjectMember(client.name, client.projects)


def _request_in(asked: ClientRequested) -> Any:
    """Return the request of a client as a message of the type of its action, or Poison if it is invalid."""
    if isinstance(asked.message, Message):
        return asked.message
    known = actions()
    if asked.do not in known:
        return Poison(f"do: no action {asked.do}, only {', '.join(known)}")
    try:
        request: Any = read_object(known[asked.do].topic.message, asked.message, "message")
        notes = (*asked.unknown_fields, *request.unknown_fields)
        return with_notes(request, notes) if asked.unknown_fields else request
    except Undecodable as problem:
        return Poison(str(problem))


def _record(
    asked: ClientRequested, request: Message, outcome: Message, client: RegisteredClient | None, clock: Clock
) -> ActRecord:
    """Return the audit record of a client's request. Its id is new, because a client chooses the ids of its
    messages, and may use one again.
    """
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
        detail=cause_of(getattr(outcome, "reason", "") or getattr(outcome, "why", "")) if denied else "",
    )
