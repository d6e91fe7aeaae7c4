"""Accepts or refuses the requests and queries of clients, according to the projects of each client.

A client can publish only with its routing key, so the broker has verified the sender `client` of each
message. A build of another project is treated exactly as an unknown one. Permitted messages are published
again with the routing keys of operators, so no other handler distinguishes clients from operators.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from bus import acts
from bus.audit_trail import ActRecord, ActsRecorded
from bus.client_acts import NotAllowed, Projects, check_project, permitted_boot, permitted_move, project_of
from bus.clients import (
    ClientAnswered,
    ClientAsked,
    ClientEditAnswered,
    ClientEditRequested,
    ClientRequested,
    ClientsFound,
    FindClients,
    FindProjects,
    ProjectsFound,
    RegisteredClient,
    client_key,
)
from bus.clock import Clock
from bus.context import is_repeated, stored_context
from bus.decisions import Decision, noted
from bus.delivery.recording import Caller, in_messages
from bus.errors import Poison, Unroutable
from bus.groups import GroupsFound
from bus.messages import BuildCancelled, BuildCancelRequested, BuildRequested, BuildUnplaceable
from bus.moves import FindMoves, MoveProgress, MoveRefused, MoveRequested, MovesFound, MoveSteered
from bus.queries import BuildsFound, DecisionFound
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.vocabulary import MAX_CAUSE, Id
from scheduler_worker.core.order import unplaceable
from scheduler_worker.owners import Owners
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.role_door import operator_of
from scheduler_worker.store.decisions import bind, registered

Act = BuildRequested | BuildCancelRequested | MoveRequested | MoveSteered
Refusal = BuildUnplaceable | BuildCancelled | MoveRefused | MoveProgress
Published = Act | Refusal | ActsRecorded


@dataclass(eq=False)
class ClientDoor:
    database: Database
    placement: PlacementQueries
    cells: CellQueries
    owners: Owners
    clock: Clock
    # field of a client's query (`ClientAsked`) → function of a feature that answers it
    client_queries: Mapping[str, Callable[[Any], Awaitable[Any]]]

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

    async def request_many(
        self, asked: Sequence[ClientRequested]
    ) -> Sequence[Published | Poison | Sequence[Published]]:
        """Return for each client request what to publish: the same request as from an operator, or a refusal
        to the client; `Poison` (dead-letter it) for a malformed request.
        """
        clients = await self._registered({client.client for client in asked})
        known = await self._known(*acts.ids_of(act for request in asked for act in _acts_of(request)))
        judged = [await self._judged(client, clients.get(client.client), known) for client in asked]
        return self._with_records(asked, judged, clients)

    def _with_records(
        self,
        asked: Sequence[ClientRequested],
        judged: Sequence[Published | Poison],
        clients: Mapping[str, RegisteredClient],
    ) -> list[Published | Poison | Sequence[Published]]:
        """Return the results `judged`. Messages with the audit records of all requests are added to the first
        result that is not `Poison`.
        """
        records = [
            _record(request, outcome, clients.get(request.client), self.clock)
            for request, outcome in zip(asked, judged, strict=True)
            if not isinstance(outcome, Poison)
        ]
        outcomes = list[Published | Poison | Sequence[Published]](judged)
        for position, outcome in enumerate(judged):
            if not isinstance(outcome, Poison):
                outcomes[position] = (outcome, *in_messages(records))
                break
        return outcomes

    async def _judged(
        self, asked: ClientRequested, client: RegisteredClient | None, known: Projects
    ) -> Published | Poison:
        requested = _acts_of(asked)
        if len(requested) != 1:
            return Poison("a client's request holds exactly one of boot, delete, move, steer")
        (act,) = requested
        try:
            if client is None:
                raise NotAllowed(f"client {asked.client} is not registered")
            key = client_key(asked.client, act.reply_to)
            if act.reply_to not in ("", key):
                allowed = f"{asked.client}, or {asked.client}_ and a name"
                raise NotAllowed(f"reply_to: {allowed}, not {act.reply_to}")
            act = structs.replace(act, reply_to=key)
            match act:
                case BuildRequested():
                    return permitted_boot(act, client, known)
                case BuildCancelRequested():
                    check_project(act.build, client, known)
                    return structs.replace(act, anywhere=True)
                case MoveRequested():
                    return permitted_move(act, client, known)
                case MoveSteered():
                    check_project(act.build, client, known)
                    await self._check_move(act)
                    return act
        except NotAllowed as refused:
            key = client_key(asked.client, act.reply_to)
            return _refusal(structs.replace(act, reply_to=key), str(refused))

    async def _check_move(self, steer: MoveSteered) -> None:
        try:
            found = await self.cells.moves(FindMoves(cell=steer.cell, moves=(steer.move,)))
        except Unroutable:
            raise NotAllowed(f"cell {steer.cell} does not answer") from None
        if not any(move.build == steer.build for move in found.moves):
            raise NotAllowed("this build has no such move in this cell")

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
        fields = [getattr(asked, name) for name in asked.__struct_fields__ if name != "client"]
        if sum(field is not None for field in fields) != 1:
            raise NotAllowed("a client's query has exactly one field in addition to client")
        projects = client.projects
        if asked.builds is not None:
            builds = (await self.cells.builds(asked.builds)).builds
            mine = [build for build in builds if build.placed.spec.project in projects]
            return ClientAnswered(builds=BuildsFound(builds=tuple(mine)))
        if asked.instances is not None:
            instances = structs.replace(asked.instances, project=project_of(client, asked.instances.project))
            return ClientAnswered(instances=await self.cells.instances(instances))
        if asked.moves is not None:
            return ClientAnswered(moves=await self._moves(asked.moves, client))
        if asked.waiting is not None:
            # the client may not count the waiting requests of other projects
            waiting = structs.replace(asked.waiting, projects=())
            waiting = structs.replace(waiting, project=project_of(client, waiting.project))
            found = await self.client_queries["waiting"](waiting)
            rows = tuple(request for request in found.waiting if request.project == waiting.project)
            holds = tuple(held for held in found.holds if held.project == waiting.project)
            return ClientAnswered(waiting=structs.replace(found, waiting=rows, holds=holds, rescued=0))
        if asked.ended_without_host is not None:
            refused = asked.ended_without_host
            refused = structs.replace(refused, project=project_of(client, refused.project))
            return ClientAnswered(ended_without_host=await self.client_queries["ended_without_host"](refused))
        if asked.decision is not None:
            decision = await self.client_queries["decision"](asked.decision)
            project = decision.request.project if decision.request is not None else None
            if project is None and decision.move is not None:
                project = (await self._known((), (decision.move.build,))).get(decision.move.build)
            mine_held = tuple(each for each in decision.held if each.project in projects)
            decision = structs.replace(decision, held=mine_held)
            return ClientAnswered(decision=decision if project in projects else DecisionFound())
        if asked.what_if is not None:
            request = asked.what_if.request
            known = await self._known((), acts.ids_of([request])[1])
            question = structs.replace(asked.what_if, request=permitted_boot(request, client, known))
            return ClientAnswered(what_if=await self.client_queries["what_if"](question))
        if asked.allocations is not None:
            if not asked.allocations:
                return ClientAnswered(allocations=())
            held = await self.placement.allocations(FindAllocations(consumers=asked.allocations))
            consumers = [consumer for consumer in held.consumers if consumer.project in projects]
            return ClientAnswered(allocations=tuple(consumers))
        if asked.usages is not None:
            usages = structs.replace(asked.usages, project=project_of(client, asked.usages.project))
            return ClientAnswered(usages=await self.placement.usages(usages))
        assert asked.groups is not None
        groups = structs.replace(asked.groups, project=project_of(client, asked.groups.project))
        answer = await self.placement.groups(groups)
        found_groups = [group for group in answer.groups if group.project == groups.project]
        return ClientAnswered(groups=GroupsFound(groups=tuple(found_groups)))

    async def _moves(self, question: FindMoves, client: RegisteredClient) -> MovesFound:
        if not question.moves and not question.builds:
            raise NotAllowed("moves: name the moves or builds")
        found = await self.cells.moves(question)
        known = await self._known((), {move.build for move in found.moves})
        mine = [move for move in found.moves if known.get(move.build) in client.projects]
        return MovesFound(moves=tuple(mine))

    async def _registered(self, names: Collection[str]) -> dict[str, RegisteredClient]:
        async with self.database.read() as tx:
            return {client.name: client for client in await registered(tx, names)}

    async def _known(self, new: Collection[Id], existing: Collection[Id]) -> Projects:
        question = FindProjects(new=tuple(sorted(new)), existing=tuple(sorted(existing)))
        return (await self.owners.find(question)).projects


def _acts_of(asked: ClientRequested) -> list[Act]:
    return [act for act in (asked.boot, asked.delete, asked.move, asked.steer) if act is not None]


def _record(
    asked: ClientRequested, outcome: Published, client: RegisteredClient | None, clock: Clock
) -> ActRecord:
    """Return the audit record of a client's request. Its id is new, because a client chooses the ids of its
    messages, and may use one again.
    """
    (request,) = _acts_of(asked)
    act, operator = acts.act_of(request), operator_of(asked.client, client)
    # clients with projects need no role, so `operator` stands for the role
    operator = structs.replace(operator, role="operator" if client else "", is_program=True)
    message = stored_context(asked).id
    caller = Caller(operator=operator, door="bus", through=f"client.{asked.client}", request=message)
    record = caller.record(clock.uuid(), clock.now(), act.name if act else "", acts.describe(request))
    denied = isinstance(outcome, Refusal)
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


def _refusal(act: Act, why: str) -> Refusal:
    match act:
        case BuildRequested():
            return unplaceable(act, act.instances, why, Decision(code="client"))
        case BuildCancelRequested():
            return BuildCancelled(
                build=act.build,
                waited=False,
                why=why,
                code="client",
                known=False,
                reply_to=act.reply_to,
                notes=act.unknown_fields,
            )
        case MoveRequested():
            return MoveRefused(
                move=act.move,
                build=act.build,
                kind=act.kind,
                reason=why[:MAX_CAUSE],
                code="client",
                decision=noted(Decision(), act.unknown_fields),
                reply_to=act.reply_to,
            )
        case MoveSteered():
            return MoveProgress(
                move=act.move,
                build=act.build,
                cell=act.cell,
                phase="",
                refused=why,
                reply_to=act.reply_to,
                code="client",
                notes=act.unknown_fields,
            )
