"""The operations of the REST API: checks requests, publishes them on the bus, and reads states by queries."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec import structs

from berth.kit.builds import INSTANCE_SECONDS
from berth.kit.cells import ask_cells, chosen_cells, known_cells
from berth.kit.publishing import checked, publish
from berth.kit.request_sense import sense_of
from berth.kit.rest_ends import REPLY_TO
from berth.rest import store
from berth.rest.accepted import AcceptedRequests
from berth.rest.bodies import (
    Accepted,
    BatchAccepted,
    BuildAccepted,
    BuildDetails,
    BuildResult,
    BuildsListed,
    Event,
    EventsListed,
    ProblemsListed,
    RequestState,
)
from berth.rest.callers import NotFound, RestCaller
from berth.rest.ends import EVENTS, EndLog, results_of
from berth.rest.store import StoredRequest, check_free
from berth.settings import BadSetting, Settings
from bus import protocol, topics
from bus.acts import is_judged_by_owner
from bus.clock import set_within
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.messages import BuildCancelRequested, BuildDeleteRequested, BuildRequested
from bus.problems import KnownProblem
from bus.projects import ProjectsFound
from bus.queries import (
    BuildStands,
    FindBuilds,
    FindDecision,
    FindInstances,
    FindWaiting,
    Instance,
    WaitingRequest,
    build_for_member,
    instance_for_member,
)
from bus.sql.database import Database
from bus.vocabulary import Message

M = TypeVar("M", bound=Message)

CONFIRMED = 100_000  # digests of published requests in memory
PATIENCE = 2.0  # seconds to wait for the scheduler's queue


@dataclass(eq=False)
class RestOperations:
    """The operations of the REST API, each judged by the caller's role and projects."""

    bus: Bus
    settings: Settings
    database: Database
    ends: EndLog
    list_problems: Callable[[], Awaitable[Sequence[KnownProblem]]]
    _confirmed: OrderedDict[str, str] = field(default_factory=OrderedDict)  # digest of a request by its id

    def __post_init__(self) -> None:
        self.accepted = AcceptedRequests(self.bus, self.database)

    # Requests for builds

    async def boot(self, caller: RestCaller, requests: Sequence[BuildRequested]) -> BatchAccepted:
        """Publish build requests, and return when the broker has stored all of them. If a request is invalid
        or not allowed, publish no request and raise.
        """
        if len({request.request for request in requests}) < len(requests):
            raise BadSetting("requests: an id occurs twice")
        notes = [_sense(index, request, len(requests)) for index, request in enumerate(requests)]
        named = [
            structs.replace(request, project=caller.named(request.project), reply_to="")
            for request in requests
        ]
        asked = [each for each in named if is_judged_by_owner(caller.operator, each, caller.member)]
        owners = await self.accepted.owners(asked, places=caller.is_limited)
        named = [caller.check(request, request.project, owners) for request in named]
        rows = [request_row(request.request, request, request.instances) for request in named]
        accepted = [
            Accepted(
                request=request.request,
                project=request.project,
                builds=request.instances,
                notes=(*request.unknown_fields, *note),
            )
            for request, note in zip(named, notes, strict=True)
        ]
        await self.accept(rows, [structs.replace(request, reply_to=REPLY_TO) for request in named], owners)
        return BatchAccepted(accepted=tuple(accepted))

    async def accept(
        self, rows: Sequence[StoredRequest], messages: Sequence[Message], owners: ProjectsFound
    ) -> None:
        """Store requests and publish their messages, unless the broker has stored all of them before. Raise
        IdTaken if an id is in use by another request, or by another project, whose requests could be read.
        """
        if not self._are_confirmed(rows):
            check_free(rows, owners.projects)
            await self.accepted.add(rows)
            await self.publish(messages)
            self._confirm(rows)

    async def accept_request(
        self, caller: RestCaller, id_: str, message: Message, project: str, owners: ProjectsFound
    ) -> None:
        """Store and publish a request about an object of a project, if the caller may send it."""
        row = request_row(id_, message, (), project)
        await self.accept([row], [caller.check(message, project, owners)], owners)

    def _are_confirmed(self, rows: Sequence[StoredRequest]) -> bool:
        return all(self._confirmed.get(row.id) == row.digest for row in rows)

    def _confirm(self, rows: Sequence[StoredRequest]) -> None:
        self._confirmed.update((row.id, row.digest) for row in rows)
        while len(self._confirmed) > CONFIRMED:
            self._confirmed.popitem(last=False)

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish messages, and wait for the confirm up to a time limit."""
        await publish(self.bus, *messages, patience=PATIENCE)

    async def request(self, caller: RestCaller, id_: str, wait: float) -> RequestState:
        """Return a request with its results; wait up to `wait` seconds until all its builds have ended."""
        await self.project(caller, id_)
        deadline = self.bus.clock.monotonic() + wait
        with self.ends.watching(id_) as changed:
            while True:
                changed.clear()
                state = await self._state(id_)
                left = deadline - self.bus.clock.monotonic()
                if state.is_ended or left <= 0 or self.ends.is_closed:
                    break
                await set_within(changed, left)
        if state.is_ended:
            return state
        return structs.replace(state, waiting=await self.waiting(id_))

    async def _state(self, id_: str) -> RequestState:
        async with self.database.read() as tx:
            project = (await store.projects_of(tx, [id_])).get(id_)
            builds = await store.builds_of(tx, id_)
            ends = await store.ends_of(tx, id_)
        if project is None or not builds:
            raise NotFound(f"no build request {id_} was received over HTTP")
        results = {build: BuildResult(build=build, status="requested") for build in builds}
        for event, body in ends:
            for result in results_of(event, body):
                results[result.build] = result
        is_ended = all(result.status != "requested" for result in results.values())
        return RequestState(request=id_, project=project, is_ended=is_ended, builds=tuple(results.values()))

    async def waiting(self, id_: str) -> WaitingRequest | None:
        """Return how a request waits for capacity; None if it does not wait, or no scheduler answers."""
        try:
            found = await self.bus.asker(topics.WAITING)(FindWaiting(requests=(id_,)))
        except (Unavailable, Unroutable):
            return None
        return next(iter(found.waiting), None)

    async def project(self, caller: RestCaller, id_: str) -> str:
        """Return the project of a build or request; raise NotFound if the project is unknown or the caller
        may not read it.
        """
        project = await self.accepted.project(id_)
        if not project or not caller.may_read(project):
            raise NotFound(_UNKNOWN.format(id_))
        return project

    async def owners(self, caller: RestCaller, act: Message, build: str) -> ProjectsFound:
        """Return the owners of the ids in a message that changes a build; raise NotFound if the build's
        project is unknown or the caller may not read in it.
        """
        owners = await self.accepted.owners([act])
        project = owners.projects.get(build, "")
        if not project or not caller.may_read(project):
            caller.note(act, project, is_denied=bool(project))
            raise NotFound(_UNKNOWN.format(build))
        return owners

    # Builds

    async def build(self, caller: RestCaller, id_: str) -> BuildDetails:
        """Return a build with its decision; details that only operators may read are left out for others."""
        project = await self.project(caller, id_)
        _, stands = await self._stands(id_)
        if stands is not None:
            stands = stands if caller.reads_all else build_for_member(stands)
            return BuildDetails(build=id_, project=project, status=stands.status, stands=stands)
        decision = await self.bus.asker(topics.DECISION)(FindDecision(id=id_))
        if not decision.known:
            return BuildDetails(build=id_, project=project, status="requested")
        held = tuple(each for each in decision.held if caller.may_read(each.project))
        decision = structs.replace(decision, held=held)
        status = "waiting" if decision.waits else "refused"
        return BuildDetails(build=id_, project=project, status=status, decision=decision)

    async def _stands(self, build: str) -> tuple[str, BuildStands | None]:
        """Return the cell that has a build, and the cell's record of it; ("", None) if no cell has it."""
        find = self.bus.asker(topics.FIND_BUILDS)
        cells = await known_cells(self.bus, self.settings)
        found, _ = await ask_cells(cells, lambda cell: find(FindBuilds(cell=cell, builds=(build,))))
        every = [(cell, stands) for cell, answer in found.items() for stands in answer.builds]
        # after a move between cells the former cell has an ended record
        return min(every, key=lambda found: found[1].status in ("deleted", "error"), default=("", None))

    async def builds(self, caller: RestCaller, question: FindInstances) -> BuildsListed:
        """Return a page of instances of all cells, or of the cell that the question names."""
        question = checked(structs.replace(question, project=caller.reading(question.project)))
        find = self.bus.asker(topics.FIND_INSTANCES, timeout=INSTANCE_SECONDS)
        named = () if question.cell == ANY_CELL else (question.cell,)
        cells = await chosen_cells(self.bus, self.settings, named, "cell")
        found, silent = await ask_cells(cells, lambda cell: find(structs.replace(question, cell=cell)))
        listed: list[Instance] = sorted(
            (instance for page in found.values() for instance in page.instances),
            key=lambda instance: instance.build,
        )
        is_more = len(listed) > question.limit or any(page.more for page in found.values())
        page = tuple(listed[: question.limit])
        if not caller.reads_all:
            page = tuple(map(instance_for_member, page))
        return BuildsListed(
            instances=page, after=page[-1].build if is_more and page else "", silent_cells=tuple(silent)
        )

    async def delete(self, caller: RestCaller, id_: str) -> BuildAccepted:
        """Publish the deletion of a build, or of all builds of a request that waits.

        If the caller's role is limited to cells or projects, the message names the build's cell, so that the
        limits can be checked.
        """
        order: BuildCancelRequested | BuildDeleteRequested = BuildCancelRequested(
            build=id_, reply_to=REPLY_TO, anywhere=True, fence=False
        )
        owners = await self.owners(caller, order, id_)
        project, place = owners.projects[id_], owners.places.get(id_)
        if caller.is_limited and place is not None:
            order = BuildDeleteRequested(build=id_, cell=place.cell, reply_to=REPLY_TO)
        caller.check(order, project, owners)
        await self.join(id_, project)
        await self.publish([order])
        return BuildAccepted(build=id_)

    async def join(self, build: str, project: str) -> None:
        """Record the project of a build, so that its results are stored."""
        async with self.database.write() as tx:
            await store.add_build(tx, build, project, self.bus.clock.now())

    async def problems(self, caller: RestCaller) -> ProblemsListed:
        """Return what is wrong now, for callers that may read the data of all projects."""
        caller.check_reads_all()
        return ProblemsListed(problems=tuple(await self.list_problems()))

    async def end_of(self, request: str, kind: type[M]) -> M | None:
        """Return the stored message of this type that ended a request, or None."""
        async with self.database.read() as tx:
            ends = await store.ends_of(tx, request)
        found = (protocol.decode(kind, body.encode()) for event, body in ends if EVENTS[event] is kind)
        return next(found, None)

    # Events

    async def events(self, caller: RestCaller, named: str, after: int | None, wait: float) -> EventsListed:
        """Return a project's events with numbers above `after` (None: above the newest number); without any,
        wait up to `wait` seconds for one.
        """
        project = caller.reading(named)
        deadline = self.bus.clock.monotonic() + wait
        last = await self.ends.checked(after)
        with self.ends.watching(project) as changed:
            while True:
                changed.clear()
                found = await self.ends.after(last, project)
                left = deadline - self.bus.clock.monotonic()
                if found or left <= 0 or self.ends.is_closed:
                    break
                await set_within(changed, left)
        return EventsListed(events=tuple(map(event_of, found)), last=found[-1].number if found else last)


ANY_CELL = "any"
_UNKNOWN = "no build or request {} is known, or its cell does not answer"


def event_of(end: store.StoredEnd) -> Event:
    """Return a stored end as an event."""
    return Event(number=end.number, event=end.event, data=msgspec.Raw(end.body.encode()))


def request_row(id_: str, message: Message, builds: Sequence[str], project: str = "") -> StoredRequest:
    """Return the row of an accepted request; the digest detects a repetition with other content."""
    digest = sha256(protocol.encode(message)).hexdigest()
    project = message.project if isinstance(message, BuildRequested) else project
    return StoredRequest(id=id_, project=project, digest=digest, builds=builds)


def _sense(index: int, request: BuildRequested, count: int) -> tuple[str, ...]:
    try:
        return sense_of(request)
    except BadSetting as problem:
        raise BadSetting(f"requests[{index}]: {problem}" if count > 1 else str(problem)) from None
