"""Reads a past period: hosts and allocations from placement's history, requests from the records of cells and
schedulers.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from berth.kit import (
    InstantCloud,
    InstantPlacement,
    Settings,
    ask_cells,
    asked_amounts,
    cells_text,
    choice_policy,
    known_cells,
    recorded_request,
    refused_builds,
)
from bus import parts, topics
from bus.claims import HOLDER_TYPES
from bus.clock import moment_text
from bus.decisions import OF_HOSTS, REASONS, FindRefused, RefusedBuild
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.messages import BuildRequested
from bus.parts import RequestParts
from bus.protocol import Ask
from bus.queries import BuildsFound, DecisionFound, FindBuilds, FindDecision, FindWaiting
from bus.replication import ConsumerChange
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import UNSAID_ID, Allocations, Id, portions, totals
from features.history.messages import HISTORY, FindHistory, LoggedCommit, SnapshotPart
from features.history.past import PastCloud
from features.history.reading import SECONDS, PastTime, StateHistory, follow
from features.quality_replay.period import (
    Event,
    HostChange,
    HostsInUse,
    RecordedArrival,
    RecordedEnd,
    RecordedPeriod,
    label_of,
)
from features.quality_replay.repeated_conditions import RepeatedCondition, read_conditions
from placement_worker.extension import Index, packed, unpacked

OnRead = Callable[[str, int], None]  # arguments: changes or records, and how many more of them were read
BUILDS_ASKED = 100  # builds in one query to a cell
DECISIONS_ASKED = 50  # queries to schedulers at one time
WAITING_ASKED = 500  # waiting requests in one answer
INSTANCE_TYPES = ("INSTANCE", "")  # "": written by a client that knows no types
WITHOUT_HOST = {"no_hosts", "room", "refused", "waited"}  # codes in addition to those of hosts
NOT_UP = {"down", "has_agent"}  # codes of hosts that were not up, but are in a replay
WAITING = {"", "line", "backlog", "crashed"}  # codes of requests that were not evaluated by themselves
_encode = parts.encoder(order="deterministic").encode

# What a replay cannot repeat → the sentence that says so, with the number of times.
UNKNOWN: dict[str, str] = {
    "holders": "consumers are reservations, or other things than instances: they are replayed by their"
    " amounts, on any host",
    "no_record": "instances have no record: they are replayed by the amounts that they got, on any host",
    "other_amounts": "instances got other amounts than their record says (a resize, or ports with resources):"
    " they are replayed by these amounts",
    "conditions": "instances had a condition that is not repeated, such as a topology or a reservation: they"
    " are replayed without it",
    "roles": "instances without a host were of requests with roles: they are left out",
    "other_reasons": "instances were refused for other reasons than a lack of capacity, such as a quota, or"
    " hosts that were down: they are left out",
    "no_request": "instances without a host have no record of what they asked: they are left out",
    "moves": "moves, and builds that went on to an alternate: a replay leaves an instance on its first host",
    "deleted_hosts": "hosts were deleted: in a replay they keep the instances that they have there, but get"
    " no further ones",
    "external": "instances came from another system, such as Nova; those without a host are not recorded",
}


async def read_period(
    bus: Bus, settings: Settings, since: float, until: float, on_read: OnRead
) -> RecordedPeriod:
    """Return what is recorded of a period. It begins later than `since` if placement's history does. Raise
    OperationRefused if the history has a gap, or if a cell does not answer.
    """
    begin = await _begin(bus, since)
    history = StateHistory(bus, PastTime(moment_text(begin), at=begin), until)
    changes = RecordedChanges(await history.state(), begin)
    async for commit in history.later():
        changes.apply(commit)
        on_read("changes", 1)
    return await _completed(bus, settings, changes, until, on_read)


async def _begin(bus: Bus, since: float) -> float:
    found = await bus.asker(HISTORY, timeout=SECONDS)(FindHistory(at=since))
    return max(since, found.snapshot_at) if found.refused else since


@dataclass(frozen=True, slots=True)
class Appeared:
    """New allocations of a consumer, whose request may be in a record."""

    at: float
    consumer: Id
    allocations: Allocations
    by_amounts: BuildRequested
    is_instance: bool = True


class RecordedChanges:
    """Collects the events of a period from the commits of placement, and which hosts were really in use."""

    def __init__(self, cloud: PastCloud, begin: float) -> None:
        self.cloud = cloud
        self.begin = begin
        self.now = _copy(cloud)
        self.index = cloud.index()
        self.in_use = HostsInUse(self.index, begin)
        self.events: list[Appeared | RecordedEnd | HostChange] = []
        self.unknown = Counter[str]()
        self._latest = begin
        for consumer, state in cloud.consumers.items():
            self.in_use.put(consumer, state.allocations, begin)

    def apply(self, commit: LoggedCommit) -> None:
        """Add the events of the next commit; raise OperationRefused if a resource class was renamed."""
        if commit.renamed is not None:
            raise OperationRefused(
                f"the resource class {commit.renamed[0]} was renamed at {moment_text(commit.at)}: requests"
                " before and after cannot be replayed together, so choose a later begin with --since"
            )
        at = self._latest = max(self._latest, commit.at)
        trees = {tree.root: tree for tree, _ in unpacked(commit.trees)} if commit.trees is not None else {}
        ended = [change for change in commit.consumers if not change.allocations]
        others = [change for change in commit.consumers if change.allocations]
        self.events += [RecordedEnd(at, change.consumer) for change in ended]
        if trees or commit.aggregates or commit.cells:
            self.events.append(HostChange(at, trees, commit.aggregates, commit.cells))
            self.unknown["deleted_hosts"] += sum(not tree.providers for tree in trees.values())
        self.index.accept(commit.number, commit.changes, trees, commit.aggregates, commit.cells)
        for change in others:
            self._allocated(change, at)
        for change in (*ended, *others):
            self.in_use.put(change.consumer, change.allocations, at)
        follow(self.now, commit)

    def _allocated(self, change: ConsumerChange, at: float) -> None:
        before = self.now.consumers.get(change.consumer)
        type_ = change.type or (before.type if before is not None else "")
        if type_ in HOLDER_TYPES:  # of a move, which is not repeated
            return
        if before is None or totals(before.allocations) != totals(change.allocations):
            request = by_amounts(change, self.index)
            is_instance = type_ in INSTANCE_TYPES
            self.events.append(Appeared(at, change.consumer, change.allocations, request, is_instance))
        elif before.allocations != change.allocations:
            self.unknown["moves"] += 1


def _copy(cloud: PastCloud) -> PastCloud:
    copy = PastCloud(cloud.number, cloud.at)
    copy.load(
        SnapshotPart(
            trees=packed(cloud.trees()),
            consumers=tuple(cloud.consumers.values()),
            aggregates=tuple(cloud.aggregates.values()),
            cells=tuple(cloud.cells.values()),
        )
    )
    return copy


def by_amounts(state: ConsumerChange, index: Index) -> BuildRequested:
    """Return a request for the amounts that a consumer has: of each child provider in a group of its own, the
    other amounts together.
    """
    together, groups = Counter[str](), list[ResourceGroup]()
    for provider, amounts in sorted(state.allocations.items()):
        row = index.rows.get(provider)
        if row is None or row.parent is None:
            together.update(amounts)
        else:
            groups.append(ResourceGroup(suffix=f"_{len(groups)}", resources=dict(amounts)))
    named_amounts = {name: together.pop(name, 0) for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
    specs = {"resources:VCPU": str(named_amounts["VCPU"])}  # so that a flavor of PCPU asks for no VCPU
    specs |= {f"resources:{name}": str(amount) for name, amount in sorted(together.items())}
    text = ",".join(f"{name}:{amount}" for name, amount in sorted(totals(state.allocations).items()))
    flavor = Flavor(
        name=text[:200],
        vcpus=named_amounts["VCPU"],
        memory_mb=named_amounts["MEMORY_MB"],
        disk_gb=named_amounts["DISK_GB"],
        extra_specs=specs,
    )
    return BuildRequested(
        request=state.consumer,
        instances=(state.consumer,),
        flavor=flavor,
        groups=tuple(groups),
        alternates=0,
        project=state.project or UNSAID_ID,
    )


class Unplaced(NamedTuple):
    """Instances of a request that got no host, and the decision about them."""

    at: float
    consumers: tuple[Id, ...]
    decided: DecisionFound


async def _completed(
    bus: Bus, settings: Settings, changes: RecordedChanges, until: float, on_read: OnRead
) -> RecordedPeriod:
    """Return the period with the requests of all consumers, and with those that got no host."""
    unknown = changes.unknown
    appeared = [event for event in changes.events if isinstance(event, Appeared)]
    instances = dict.fromkeys(each.consumer for each in appeared if each.is_instance)
    at_begin = changes.cloud.consumers
    earlier = [id_ for id_, each in at_begin.items() if each.type in INSTANCE_TYPES and id_ not in instances]
    records = await _recorded_by_cells(bus, settings, [*instances, *earlier], on_read)
    external = await _decisions(bus, [id_ for id_ in instances if id_ not in records], on_read)
    records |= {id_: found.request for id_, found in external.items() if found.request is not None}
    unplaced = await _without_host(bus, changes.begin, until, on_read)
    asked = [each.decided.request for each in unplaced if each.decided.request is not None]
    conditions = await read_conditions(bus, [*records.values(), *asked])
    requests = KnownRequests(conditions, unknown)
    unknown["external"] = len(external)

    events: list[Event] = []
    for event in changes.events:
        if isinstance(event, Appeared):
            request = requests.of(event, records.get(event.consumer))
            events.append(RecordedArrival(event.at, (event.consumer,), request))
        else:
            events.append(event)
    events += requests.unplaced(unplaced)
    events.sort(key=attrgetter("at"))  # is stable: changes remain in the order of their numbers
    period = RecordedPeriod(
        begin=changes.begin,
        end=until,
        cloud=changes.cloud,
        events=events,
        earlier={
            id_: requests.plain(records[id_]) if id_ in records else by_amounts(state, changes.index)
            for id_, state in at_begin.items()
            if id_ in records or state.type in INSTANCE_TYPES
        },
        conditions=conditions,
        unknown=unknown,
    )
    arrivals = [event for event in events if isinstance(event, RecordedArrival)]
    requested = sum(len(event.consumers) for event in arrivals)
    refused = sum(len(event.consumers) for event in arrivals if event.is_refused)
    recorded = changes.in_use.outcome(until, requested, refused)
    cloud = InstantCloud(InstantPlacement(changes.index), choice_policy(settings), settings)
    fits = {label_of(request.flavor): cloud.fitting(request) for request in period.usual}
    return replace(period, recorded=replace(recorded, fits=fits))


class KnownRequests:
    """Makes requests for the replay from recorded ones; one object for all that differ only in their ids."""

    def __init__(self, conditions: Sequence[RepeatedCondition], unknown: Counter[str]) -> None:
        self._conditions = conditions
        self._unknown = unknown
        self._known: dict[bytes, tuple[BuildRequested, Mapping[str, int]]] = {}

    def plain(self, request: BuildRequested) -> BuildRequested:
        """Return a request with the conditions that a replay can repeat."""
        return self._plain(request)[0]

    def _plain(self, request: BuildRequested) -> tuple[BuildRequested, Mapping[str, int]]:
        kept = [part for part in request.parts if any(each.repeats(part) for each in self._conditions)]
        request = structs.replace(request, parts=RequestParts(*kept), alternates=0, reply_to="")
        key = _encode(structs.replace(request, request="", instances=()))
        known = self._known.get(key)
        if known is None:
            one = structs.replace(request, instances=request.instances[:1])
            known = self._known[key] = request, asked_amounts(one)
        return known

    def of(self, appeared: Appeared, record: BuildRequested | None) -> BuildRequested:
        """Return the request for allocations that appeared in the period. If its record is missing or has
        other amounts, return a request for these amounts.
        """
        if record is None:
            self._unknown["no_record" if appeared.is_instance else "holders"] += 1
            return self.plain(appeared.by_amounts)
        request, asked = self._plain(record)
        if asked != totals(appeared.allocations):
            self._unknown["other_amounts"] += 1
            return self.plain(appeared.by_amounts)
        self._count_conditions(record, 1)
        return request

    def unplaced(self, found: Iterable[Unplaced]) -> list[RecordedArrival]:
        """Return the arrivals of the instances that got no host for lack of one."""
        arrivals = []
        for at, consumers, decided in found:
            code, request = decided.decision.code, decided.request
            lacks_hosts = code in REASONS[OF_HOSTS].codes.keys() - NOT_UP or code in WITHOUT_HOST
            if request is None:
                self._unknown["no_request"] += len(consumers)
            elif not lacks_hosts and not (decided.waits and code in WAITING):
                self._unknown["other_reasons"] += len(consumers)
            elif request.parts.sections:
                self._unknown["roles"] += len(consumers)
            else:
                self._count_conditions(request, len(consumers))
                # the other instances of the request got hosts, so each of the rest is welcome alone
                at_least = 1 if len(consumers) < len(request.instances) else request.at_least
                request = self.plain(structs.replace(request, at_least=at_least))
                arrivals.append(RecordedArrival(at, consumers, request, is_refused=True))
        return arrivals

    def _count_conditions(self, request: BuildRequested, instances: int) -> None:
        others = list(request.parts)
        for each in self._conditions:
            judged = [part for part in others if each.judges(part)]
            others = [part for part in others if not each.judges(part)]
            if not all(map(each.repeats, judged)):
                self._unknown[each.unknown] += instances
        if any(part.limits_hosts for part in others):
            self._unknown["conditions"] += instances


async def _recorded_by_cells(
    bus: Bus, settings: Settings, builds: Sequence[Id], on_read: OnRead
) -> dict[Id, BuildRequested]:
    cells, ask = await known_cells(bus, settings), bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    found: dict[Id, BuildRequested] = {}
    for some in portions(builds, BUILDS_ASKED):
        answers, silent = await ask_cells(cells, partial(_builds_of, ask, some))
        if silent:
            raise OperationRefused(f"no answer from {cells_text(silent)}: its requests are unknown")
        for answer in answers.values():
            found |= {build.build: recorded_request(build) for build in answer.builds}
        on_read("records", len(some))
    return found


async def _builds_of(ask: Ask[FindBuilds, BuildsFound], builds: tuple[Id, ...], cell: str) -> BuildsFound:
    return await ask(FindBuilds(cell=cell, builds=builds))


async def _decisions(bus: Bus, ids: Iterable[Id], on_read: OnRead) -> dict[Id, DecisionFound]:
    """Return the decisions that schedulers have recorded, by the id of the build or request."""
    ask, found = bus.asker(topics.DECISION), dict[Id, DecisionFound]()
    for some in portions(ids, DECISIONS_ASKED):
        answers = await asyncio.gather(*(ask(FindDecision(id=id_)) for id_ in some))
        found |= {id_: answer for id_, answer in zip(some, answers, strict=True) if answer.known}
        on_read("records", len(some))
    return found


async def _without_host(bus: Bus, begin: float, until: float, on_read: OnRead) -> list[Unplaced]:
    """Return the instances that got no host in the period, and those that wait for one."""
    refused = [each for each in await refused_builds(bus, FindRefused(since=begin)) if each.since <= until]
    waiting, after = [], 0
    while True:
        page = await bus.asker(topics.WAITING)(FindWaiting(after=after, limit=WAITING_ASKED))
        waiting += [each for each in page.waiting if not each.move and each.since <= until]
        if page.more is None:
            break
        after = page.more
    of_requests: dict[Id, list[RefusedBuild]] = {}
    for build in refused:
        of_requests.setdefault(build.request, []).append(build)
    ids = [*(builds[0].build for builds in of_requests.values()), *(each.request for each in waiting)]
    decided = await _decisions(bus, ids, on_read)
    nothing = DecisionFound()
    found = [
        Unplaced(
            builds[0].since, tuple([each.build for each in builds]), decided.get(builds[0].build, nothing)
        )
        for builds in of_requests.values()
    ]
    for request in waiting:
        answer = decided.get(request.request, nothing)
        instances = answer.request.instances if answer.request is not None else request.builds
        found.append(Unplaced(max(request.since, begin), instances, answer))
    return found
